"""Exponential moving average (EMA) of weights. It is post-processing of released gradients and costs no privacy."""

from __future__ import annotations

import torch
from torch import nn


def ema_update(ema: nn.Module, model: nn.Module, *, index: int, decay: float) -> None:
    """Move the averaged weights towards the model's.

    Args:
        ema: The module with the averaged weights; it is changed in place.
        model: The module that is trained.
        index: The number of the step, counted from 0. In the first steps the decay is at most (1 + index) /
            (10 + index), so that the initial weights are forgotten.
        decay: The decay of the average; 0 copies the weights.
    """
    decay = min(decay, (1 + index) / (10 + index))
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1.0 - decay)
