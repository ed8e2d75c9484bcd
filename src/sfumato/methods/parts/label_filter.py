"""A private judge for any generator: a linear classifier on fixed wavelets, trained by DP-SGD.

It costs little, because it has few parameters; a drawing that it would have given another label is drawn again. What it
learned is released with the generator, so asking it is free.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from sfumato.networks.wavelets import LabelFilter
from sfumato.privacy import Block, Curator, Draws, SubsampledGaussian
from sfumato.training.ema import ema_update

_EVENT = "judge"
_BLOCK = "gradient"
_LARGEST_NOISE = 0.07  # on clothes at the noise of ε = 1, three times as much cost five points


class FilteredGenerator(nn.Module):
    """A generator and the judge of its drawings, as they are released together."""

    def __init__(self, generator: nn.Module, judge: LabelFilter) -> None:
        super().__init__()
        self.generator, self.judge = generator, judge


def label_filter_query(*, sampling_rate: float, steps: int, noise_multiplier: float = 1.0) -> SubsampledGaussian:
    """What a judge will ask; the noise is in proportion to the method's other questions."""
    return SubsampledGaussian(_EVENT, (Block(_BLOCK, noise_multiplier),), sampling_rate=sampling_rate, steps=steps)


def train_label_filter(curator: Curator, judge: LabelFilter, *, batch: float, learning_rate: float) -> None:
    """By momentum, on gradients clipped to 1; kept is a running average. ``batch`` is the public size of a batch.

    Where there is much noise for few units the learning rate is lower, so that a step moves no weight by more noise
    than ``_LARGEST_NOISE``.
    """
    average = deepcopy(judge)
    rate = min(learning_rate, _LARGEST_NOISE * batch / curator.plan.event(_EVENT).noise_multiplier)
    optimizer = torch.optim.SGD(judge.parameters(), lr=rate, momentum=0.9)
    for step in curator.steps(_EVENT, keep={"judge": judge, "average": average, "optimizer": optimizer}):
        gradient = step.noisy_gradient(_BLOCK, judge, label_filter_loss, clip_norm=1.0)
        (gradient / batch).apply(optimizer)
        ema_update(average, judge, index=step.index, decay=0.95)
    judge.load_state_dict(average.state_dict())


def label_filter_loss(model: LabelFilter, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    return nn.functional.cross_entropy(model(torch.nan_to_num(images).clamp(0.0, 1.0)), labels, reduction="none")


def rejection_sample(
    draw: Callable[[Tensor], Tensor], judge: nn.Module, labels: Tensor, *, max_rejections: int
) -> Tensor:
    """``draw(labels)``, and up to ``max_rejections`` times again where the judge says another label; the best stays."""
    images = draw(labels)
    belief, sure = _opinion(judge, images, labels)
    for _ in range(max_rejections):
        doubted = (~sure).nonzero()[:, 0]
        if not len(doubted):
            break
        again = draw(labels[doubted])
        new, convinced = _opinion(judge, again, labels[doubted])
        better = new > belief[doubted]
        place = doubted[better]
        images[place], belief[place], sure[place] = again[better], new[better], convinced[better]
    return images


def _opinion(judge: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """How far the judge believes each label, and whether it would have said the same."""
    logits = judge(images)
    return logits.log_softmax(1).gather(1, labels[:, None])[:, 0], logits.argmax(1) == labels
