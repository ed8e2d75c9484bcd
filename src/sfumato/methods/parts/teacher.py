"""A teacher for generators: a linear classifier on scattering features, trained by DP-SGD on all records at once.

Its few parameters make it accurate under noise. Samples that it gives another label are drawn again, and its gradient
can guide a sampler. It is released with the generator, so asking it costs nothing more.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from sfumato.networks.features import ScatteringClassifier
from sfumato.privacy import Block, Curator, Draws, SubsampledGaussian
from sfumato.privacy.gradients import Performance
from sfumato.training.optimisation import ema_update

_EVENT = "teacher"
_BLOCK = "gradient"
_CLIP_NORM = 0.5
_MOMENTUM = 0.9
_EMA_DECAY = 0.9
_EAGER = Performance(compile=False)  # compiling would take longer than the training
_LARGEST_NOISE = 0.02  # standard deviation that one step may add to a weight


def teacher_query(*, sampling_rate: float, steps: int) -> SubsampledGaussian:
    """The gradients of the teacher's training."""
    return SubsampledGaussian(_EVENT, (Block(_BLOCK),), sampling_rate=sampling_rate, steps=steps)


def train_teacher(curator: Curator, teacher: ScatteringClassifier, *, batch: float, learning_rate: float) -> None:
    """Momentum SGD on clipped gradients; the averaged weights stay. ``batch`` is the public expected batch size.

    Where the noise is large for the batch the learning rate is lower, so that a step adds at most ``_LARGEST_NOISE``
    to a weight.
    """
    ema = deepcopy(teacher)
    noise = curator.plan.event(_EVENT).noise_multiplier * _CLIP_NORM / batch
    rate = min(learning_rate, _LARGEST_NOISE / noise)
    optimizer = torch.optim.SGD(teacher.parameters(), lr=rate, momentum=_MOMENTUM)
    for step in curator.steps(_EVENT, keep={"teacher": teacher, "ema": ema, "optimizer": optimizer}):
        gradient = step.noisy_gradient(_BLOCK, teacher, teacher_loss, clip_norm=_CLIP_NORM, performance=_EAGER)
        (gradient / batch).apply(optimizer)
        ema_update(ema, teacher, index=step.index, decay=_EMA_DECAY)
    teacher.load_state_dict(ema.state_dict())
    teacher.requires_grad_(False)


def teacher_loss(model: ScatteringClassifier, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    """Cross-entropy, ``[rows]``."""
    images = torch.nan_to_num(images).clamp(0.0, 1.0)
    return nn.functional.cross_entropy(model(images), labels, reduction="none")


def guided(clean: Tensor, labels: Tensor, teacher: ScatteringClassifier, *, variance: Tensor) -> Tensor:
    """Clean estimates in -1..1, moved towards their labels.

    To first order, the mean of a Gaussian posterior of this variance, given the label.
    """
    with torch.enable_grad():
        place = clean.detach().requires_grad_()
        belief = teacher((place + 1.0) / 2.0).log_softmax(1).gather(1, labels[:, None])
        (gradient,) = torch.autograd.grad(belief.sum(), place)
    return clean + variance * gradient
