"""Exponential moving average (EMA) of weights, which is post-processing of released answers."""

from __future__ import annotations

import torch
from torch import nn


def ema_update(ema: nn.Module, model: nn.Module, *, index: int, decay: float) -> None:
    """Move the averaged weights towards the model's; early on the decay is smaller, so that the start is forgotten."""
    decay = min(decay, (1 + index) / (10 + index))
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1.0 - decay)
