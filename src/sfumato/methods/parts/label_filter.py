"""Rejection sampling by a differentially private classifier, for any generator of labelled images.

The classifier is linear on fixed wavelet features and is trained by DP-SGD; it has few parameters, so it needs little
of the budget. It is released with the generator. An image that it assigns to another class is rejected and drawn
again, which is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from sfumato.networks.features import LabelFilter
from sfumato.networks.pixels import valid_pixels
from sfumato.privacy import Block, Curator, Draws, SubsampledGaussian
from sfumato.training.optimisation import ema_update

EVENT = "label filter"
_BLOCK = "gradient"
_CLIP_NORM = 1.0
_EMA_DECAY = 0.95
# The largest noise that one step may add to a weight. On Fashion-MNIST at ε = 1, three times as much cost five points.
_MAX_NOISE_PER_STEP = 0.07


class FilteredGenerator(nn.Module):
    """A generator and the classifier that filters its images, as they are released together."""

    def __init__(self, generator: nn.Module, label_filter: LabelFilter) -> None:
        super().__init__()
        self.generator, self.label_filter = generator, label_filter


def label_filter_query(*, sampling_rate: float, steps: int, noise_multiplier: float = 1.0) -> SubsampledGaussian:
    """The event of the classifier's training; its noise is relative to the method's other events."""
    return SubsampledGaussian(EVENT, (Block(_BLOCK, noise_multiplier),), sampling_rate=sampling_rate, steps=steps)


def train_label_filter(curator: Curator, label_filter: LabelFilter, *, batch: float, learning_rate: float) -> None:
    """Train the classifier by DP-SGD with momentum and keep the moving average of its weights.

    Args:
        curator: Answers the queries.
        label_filter: The classifier; it is changed in place.
        batch: The expected batch size, a public number.
        learning_rate: The largest learning rate. It is reduced where the noise of a step, divided by ``batch``, would
            exceed a fixed limit.
    """
    average = deepcopy(label_filter)
    noise_multiplier = curator.plan.event(EVENT).noise_multiplier
    learning_rate = min(learning_rate, _MAX_NOISE_PER_STEP * batch / noise_multiplier)
    optimizer = torch.optim.SGD(label_filter.parameters(), lr=learning_rate, momentum=0.9)
    keep = {"label filter": label_filter, "average": average, "optimizer": optimizer}
    for step in curator.steps(EVENT, keep=keep):
        gradient = step.noisy_gradient(_BLOCK, label_filter, label_filter_loss, clip_norm=_CLIP_NORM)
        (gradient / batch).apply(optimizer)
        ema_update(average, label_filter, index=step.index, decay=_EMA_DECAY)
    label_filter.load_state_dict(average.state_dict())


def label_filter_loss(model: LabelFilter, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
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
