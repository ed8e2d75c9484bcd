"""Learning-rate schedules, as factors on the initial learning rate."""

from __future__ import annotations

import math

import torch


def cosine_decay(progress: float, *, final: float = 0.0) -> float:
    """The factor after a share ``progress`` (0 to 1) of the training: half a cosine from 1 down to ``final``.

    >>> [round(cosine_decay(progress, final=0.1), 2) for progress in (0.0, 0.5, 1.0)]
    [1.0, 0.55, 0.1]
    """
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))


def warmup_cosine_decay(progress: float) -> float:
    """The factor with a linear warm-up over the first 5 % from 0.05 on, times half a cosine down to 0."""
    return min(1.0, 20.0 * progress + 0.05) * 0.5 * (1.0 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Use this learning rate in every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
