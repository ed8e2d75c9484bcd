"""How a noisy training settles: smaller steps towards its end, and an average of its weights. Both use answers only."""

from __future__ import annotations

import math

import torch
from torch import nn


def settled(done: float, *, final: float) -> float:
    """The learning rate's share when ``done`` (0 to 1) of the training is over: half a cosine from 1 to ``final``."""
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


def follow(average: nn.Module, model: nn.Module, *, index: int, memory: float) -> None:
    """Move ``average`` towards the model: an exponential average, over fewer steps while there are few."""
    keep = min(memory, (1 + index) / (10 + index))
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1.0 - keep)
