"""Teachers of generators: linear classifiers on fixed features, trained by DP-SGD and released with the generator.

A teacher has few parameters, so it needs little of the budget. Images that it gives another label are drawn again, and
its gradient can guide a sampler: both are post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.networks.features import LabelFilter
from sfumato.networks.pixels import valid_pixels
from sfumato.privacy import Block, Curator, Draws, SubsampledGaussian
from sfumato.privacy.gradients import Performance
from sfumato.training.optimisation import ema_update

_BLOCK = "gradient"
_MOMENTUM = 0.9


@dataclass(frozen=True)
class TeacherTraining:
    """The event of a teacher's training, its clip norm, and the standard deviation that a step may add to a weight."""

    event: str
    clip_norm: float
    largest_noise: float
    ema_decay: float
    performance: Performance | None = None


LABEL_FILTER = TeacherTraining("label filter", 1.0, 0.07, 0.95)
"""On wavelets. On Fashion-MNIST at ε = 1, three times as much noise in a step cost five points."""
TEACHER = TeacherTraining("teacher", 0.5, 0.02, 0.9, Performance(compile=False))
"""On scattering features, of all records at once. Compiling would take longer than the training."""


class FilteredGenerator(nn.Module):
    """A generator and the classifier that filters its images, as they are released together."""

    def __init__(self, generator: nn.Module, label_filter: LabelFilter) -> None:
        super().__init__()
        self.generator, self.label_filter = generator, label_filter


def teacher_query(
    training: TeacherTraining, *, sampling_rate: float, steps: int, noise_multiplier: float = 1.0
) -> SubsampledGaussian:
    """The event of a teacher's training; its noise is relative to the method's other events."""
    block = Block(_BLOCK, noise_multiplier)
    return SubsampledGaussian(training.event, (block,), sampling_rate=sampling_rate, steps=steps)


def train_teacher(
    curator: Curator, training: TeacherTraining, teacher: nn.Module, *, batch: float, learning_rate: float
) -> None:
    """Momentum SGD on clipped gradients; the averaged weights stay. ``batch`` is the public expected batch size.

    The learning rate is reduced where a step would add more noise to a weight than ``training`` allows.
    """
    average = deepcopy(teacher)
    noise = curator.plan.event(training.event).noise_multiplier * training.clip_norm
    rate = min(learning_rate, training.largest_noise * batch / noise)
    optimizer = torch.optim.SGD(teacher.parameters(), lr=rate, momentum=_MOMENTUM)
    keep = {training.event: teacher, "average": average, "optimizer": optimizer}
    for step in curator.steps(training.event, keep=keep):
        gradient = step.noisy_gradient(
            _BLOCK, teacher, teacher_loss, clip_norm=training.clip_norm, performance=training.performance
        )
        (gradient / batch).apply(optimizer)
        ema_update(average, teacher, index=step.index, decay=training.ema_decay)
    teacher.load_state_dict(average.state_dict())
    teacher.requires_grad_(False)


def teacher_loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    """Cross-entropy of each row, ``[B]``."""
    return nn.functional.cross_entropy(model(valid_pixels(images)), labels, reduction="none")


def rejection_sample(
    draw: Callable[[Tensor], Tensor], classifier: nn.Module, labels: Tensor, *, max_rejections: int
) -> Tensor:
    """Images ``draw(labels)``, of which those that the classifier assigns to another class are drawn again.

    Args:
        draw: Draws one image for each label.
        classifier: Images to logits ``[B, classes]``.
        labels: The wanted labels, ``[B]``.
        max_rejections: How often an image may be drawn again. Of all draws the most probable one is kept.
    """
    images = draw(labels)
    log_probability, accepted = _assess(classifier, images, labels)
    for _ in range(max_rejections):
        rejected = (~accepted).nonzero()[:, 0]
        if not len(rejected):
            break
        proposal = draw(labels[rejected])
        proposed, proposal_accepted = _assess(classifier, proposal, labels[rejected])
        better = proposed > log_probability[rejected]
        rows = rejected[better]
        images[rows], log_probability[rows] = proposal[better], proposed[better]
        accepted[rows] = proposal_accepted[better]
    return images


def _assess(classifier: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of each wanted label, and whether it is the predicted one."""
    logits = classifier(images)
    return logits.log_softmax(1).gather(1, labels[:, None])[:, 0], logits.argmax(1) == labels


def guided(clean: Tensor, labels: Tensor, teacher: nn.Module, *, variance: Tensor) -> Tensor:
    """Clean estimates in -1..1, moved towards their labels.

    To first order, the mean of a Gaussian posterior of this variance, given the label.
    """
    with torch.enable_grad():
        place = clean.detach().requires_grad_()
        belief = teacher((place + 1.0) / 2.0).log_softmax(1).gather(1, labels[:, None])
        (gradient,) = torch.autograd.grad(belief.sum(), place)
    return clean + variance * gradient
