"""The last layer of a generator of labelled images: label check, public deformations, tone.

All of it is computed from released answers and from samples, so it costs no more than the queries of teacher and tone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sfumato.methods.parts.linear_teacher import LinearTeacher
from sfumato.methods.parts.tone import Tone

LABELS = ("auto", "off", "reject", "relabel")
_LEAST_AGREEMENT, _MOST_AGREEMENT = 0.1, 0.9
"""Agreement of samples with the teacher, beyond chance, between which ``auto`` rejects: below it the teacher knows too
little, above it samples near the border of a class would be lost for little."""


class FinishedGenerator(nn.Module):
    """A generator, the tone of its images and the teacher that checks their labels, as they are released."""

    agreement: Tensor

    def __init__(self, generator: nn.Module, tone: Tone | None, teacher: LinearTeacher | None) -> None:
        super().__init__()
        self.generator, self.tone, self.teacher = generator, tone, teacher
        self.register_buffer("agreement", torch.tensor(0.0))

    def measure_agreement(self, images: Tensor, labels: Tensor) -> None:
        """How often the teacher gives samples the label they were drawn for, beyond chance: 1 is always, 0 chance."""
        if self.teacher is None:
            return
        found = torch.cat([self.teacher(part).argmax(1) for part in images.split(250)])
        chance = 1.0 / self.teacher.bias.numel()
        share = float((found == labels).double().mean())
        self.agreement.fill_((share - chance) / max(1e-9, 1.0 - chance))


def finish(
    model: FinishedGenerator,
    draw: Callable[[Tensor], Tensor],
    labels: Tensor,
    *,
    relabelling: str = "auto",
    max_rejections: int = 3,
    deform: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """One image for each label: drawn, its label checked by the teacher, deformed, toned."""
    teacher = model.teacher
    if relabelling == "auto":
        relabelling = "reject" if _LEAST_AGREEMENT <= float(model.agreement) < _MOST_AGREEMENT else "off"
    if teacher is None or relabelling == "off":
        images = draw(labels)
    else:
        images = _checked(draw, teacher, labels, max_rejections, exchange=relabelling == "relabel")
    if deform is not None:
        images = deform(images)
    return (images if model.tone is None else model.tone(images)).clamp(0.0, 1.0)


def _checked(
    draw: Callable[[Tensor], Tensor], teacher: nn.Module, labels: Tensor, rounds: int, *, exchange: bool
) -> Tensor:
    """Images that the teacher gives their labels; after ``rounds`` redraws the most probable of an image's draws.

    With ``exchange``, an image that the teacher gives another label serves where that label is wanted.
    """
    images = draw(labels).clamp(0.0, 1.0)
    logits = teacher(images)
    if exchange:
        order = _exchanged(logits.argmax(1), labels)
        images, logits = images[order], logits[order]
    best, accepted = _probability(logits, labels), logits.argmax(1) == labels
    for _ in range(rounds):
        wanted = (~accepted).nonzero()[:, 0]
        if not len(wanted):
            break
        drawn = draw(labels[wanted]).clamp(0.0, 1.0)
        logits = teacher(drawn)
        probability = _probability(logits, labels[wanted])
        better = probability > best[wanted]
        rows = wanted[better]
        images[rows], best[rows] = drawn[better], probability[better]
        accepted[rows] = logits.argmax(1)[better] == labels[rows]
    return images


def _probability(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.log_softmax(1).gather(1, labels[:, None])[:, 0]


def _exchanged(found: Tensor, labels: Tensor) -> Tensor:
    """A permutation after which as many images as possible stand where the label that was found is wanted."""
    order = torch.full_like(labels, -1)
    for label in labels.unique():
        places, images = (labels == label).nonzero()[:, 0], (found == label).nonzero()[:, 0]
        fitting = min(len(places), len(images))
        order[places[:fitting]] = images[:fitting]
    taken = torch.zeros_like(labels, dtype=torch.bool)
    taken[order[order >= 0]] = True
    order[order < 0] = (~taken).nonzero()[:, 0]
    return order
