"""What training loops share: moving averages, schedules, flat parameters, Adam as a function, a divergence guard."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients import groups_of
from sfumato.privacy.gradients.batch import NoisyGradient


def ema_update(ema: nn.Module, model: nn.Module, *, index: int, decay: float) -> None:
    """Move the averaged weights towards the model's, in place; a ``decay`` of 0 copies them.

    In the first steps, counted from 0, the decay is at most (1 + index) / (10 + index), so that the initial weights are
    forgotten.
    """
    decay = min(decay, (1 + index) / (10 + index))
    with torch.no_grad():
        torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1.0 - decay)


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


class FlatParameters(nn.Module):
    """One vector for each clip group.

    The model's own parameters become views of these vectors, so the model must not be moved to another device
    afterwards. What a checkpoint saves are the vectors.
    """

    def __init__(self, model: nn.Module, clip_norm: Mapping[str, float]) -> None:
        """Flatten ``model`` by the groups of ``clip_norm``, which maps a prefix of parameter names to a clip norm."""
        super().__init__()
        own = dict(model.named_parameters())
        self.groups = nn.ParameterDict()
        for group, (_, names) in groups_of(model, clip_norm).items():
            vector = torch.cat([own[name].detach().flatten() for name in names])
            for name, piece in zip(names, vector.split([own[name].numel() for name in names]), strict=True):
                own[name].data = piece.view(own[name].shape)
            self.groups[group] = nn.Parameter(vector)

    def apply_gradient(self, gradient: NoisyGradient, optimizer: torch.optim.Optimizer) -> None:
        """Take one optimiser step along a noisy gradient of the same clip groups."""
        pieces = gradient.vector.split([vector.numel() for vector in self.groups.values()])
        for vector, piece in zip(self.groups.values(), pieces, strict=True):
            vector.grad = piece
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def copy_from(self, other: FlatParameters) -> None:
        """Copy the other's weights; the model follows, because its parameters are views."""
        for own, value in zip(self.parameters(), other.parameters(), strict=True):
            own.copy_(value)


BETA1, EPS = 0.9, 1e-8


def adam_update(
    gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, step: int | Tensor, learning_rate: float, beta2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What one step of Adam subtracts from the weights, and the two moving averages after it.

    Steps count from 1; ``step`` is a tensor where owners have taken different numbers of them.
    """
    exp_avg = BETA1 * exp_avg + (1 - BETA1) * gradient
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient.square()
    corrected, corrected_sq = exp_avg / (1 - BETA1**step), exp_avg_sq / (1 - beta2**step)
    return learning_rate * corrected / (corrected_sq.sqrt() + EPS), exp_avg, exp_avg_sq


def minimise(
    loss: Callable[[Tensor, int], Tensor],
    start: Tensor,
    *,
    steps: int,
    learning_rate: float,
    beta2: float = 0.99,
    project: Callable[[Tensor], Tensor] = lambda values: values,
) -> Tensor:
    """The values after ``steps`` steps of Adam from ``start``. The first dimension counts owners.

    ``loss(values, step)`` is a sum over the owners in which each term depends on one owner's values only, so that the
    owners are minimised side by side and independently. After every step ``project`` brings the values back into
    their domain. An owner whose values become infinite or NaN keeps its start.
    """
    values, exp_avg, exp_avg_sq = start, torch.zeros_like(start), torch.zeros_like(start)
    for number in range(steps):
        gradient = torch.func.grad(loss)(values, number)
        change, exp_avg, exp_avg_sq = adam_update(
            gradient, exp_avg, exp_avg_sq, step=number + 1, learning_rate=learning_rate, beta2=beta2
        )
        values = project(values - change)
    finite = torch.isfinite(values).flatten(1).all(1).view(-1, *[1] * (start.ndim - 1))
    return torch.where(finite, values, start).detach()


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

    def state_dict(self) -> dict[str, Any]:
        return {
            "learning_rate_factor": self.learning_rate_factor,
            "losses": (self._steps, self._first, self._best),
            "saved": self._saved,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learning_rate_factor = state["learning_rate_factor"]
        self._steps, self._first, self._best = state["losses"]
        model, optimizer = state["saved"]
        self._saved = model, optimizer
