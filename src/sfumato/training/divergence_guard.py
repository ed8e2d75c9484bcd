"""A generator that breaks down is brought back. It learns from answers, so its loss is public and may be looked at."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

_EVERY = 20  # a look waits for the device
_LOST = 0.5  # of what was gained


class DivergenceGuard:
    """Remembers a model at its best. Where half of what its loss had gained is lost, it goes back there, and on with
    half the rate of learning, ``rate``."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self.rate = 1.0
        self._asked, self._first, self._best = 0, math.nan, math.inf
        self._kept: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    def needed(self, loss: Tensor) -> bool:
        """Asked before every step with the loss of the model as it is; every so often it looks. True where the model
        is another now, so that the loss's slope is of no use."""
        self._asked += 1
        if self._asked % _EVERY != 1:
            return False
        value = float(loss.detach())
        if not self._kept[0]:
            self._first = value
        elif not value <= self._best + _LOST * (self._first - self._best):  # nor is what is no number
            self.model.load_state_dict(self._kept[0])
            self.optimizer.load_state_dict(self._kept[1])
            self.rate *= 0.5
            return True
        if value < self._best:
            self._best = value
            self._kept = deepcopy(self.model.state_dict()), deepcopy(self.optimizer.state_dict())
        return False
