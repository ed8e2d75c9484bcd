"""Roll back to the best weights and halve the learning rate when a loss diverges.

The guard looks at the loss of a generator that learns from released answers. That loss is public, so the decision to
roll back costs no privacy. It must never be given a loss on private records.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

_CHECK_EVERY = 20  # steps: reading the loss waits for the device
_TOLERATED_LOSS = 0.5  # of what the loss had gained since the first check


class DivergenceGuard:
    """Keeps a copy of the best weights and restores it when half of the loss's improvement has been lost.

    ``learning_rate_factor`` starts at 1 and is halved at every restoration; the training multiplies its learning rate
    by it.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Watch ``model``, which ``optimizer`` trains."""
        self.model, self.optimizer = model, optimizer
        self.learning_rate_factor = 1.0
        self._steps, self._first, self._best = 0, math.nan, math.inf
        self._saved: tuple[dict[str, Any], dict[str, Any]] = ({}, {})

    def rolled_back(self, loss: Tensor) -> bool:
        """Whether the best weights were restored; the gradient of ``loss`` is then stale and must not be used.

        Call it before every optimiser step with the loss of the present weights.
        """
        self._steps += 1
        if self._steps % _CHECK_EVERY != 1:
            return False
        value = float(loss.detach())
        if not self._saved[0]:
            self._first = value
        elif not value <= self._best + _TOLERATED_LOSS * (self._first - self._best):  # true for NaN as well
            self.model.load_state_dict(self._saved[0])
            self.optimizer.load_state_dict(self._saved[1])
            self.learning_rate_factor *= 0.5
            return True
        if value < self._best:
            self._best = value
            self._saved = deepcopy(self.model.state_dict()), deepcopy(self.optimizer.state_dict())
        return False
