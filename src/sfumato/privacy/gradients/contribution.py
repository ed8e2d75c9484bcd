"""What one parameter's use contributes to each unit's gradient: its norm, and the exact sum of the clipped vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sfumato.privacy.gradients.fixed_point import EXACT_UNITS


class Contribution(ABC):
    """One parameter's part of every unit's gradient.

    The units of a microbatch lie side by side; with ``stack`` class models the first ``units / stack`` belong to the
    first model. ``relative`` and ``absolute`` bound what rounding to the grid adds to a unit's vector: ``relative``
    times its spread, plus ``absolute`` grid steps (see ``fixed_point``).
    """

    stack: int
    relative: float
    absolute: float

    @abstractmethod
    def norms(self) -> tuple[Tensor, Tensor]:
        """Each unit's norm, and its spread: a bound on the norm before terms cancel. Both are float64 ``[units]``."""

    @abstractmethod
    def gradients(self) -> Tensor:
        """Each unit's gradient, ``[units, numel]``, in the parameter's own order."""

    @abstractmethod
    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        """``Σ_u round(factor_u · gradient_u / spacing)`` for each model, int64 ``[stack, numel]``.

        A unit with factor 0 adds nothing, even if its gradient is not finite.
        """


class PerExample(Contribution):
    """Gradients that are held whole, ``[units, numel]``: the very numbers that are measured are scaled and added."""

    relative = 0.0

    def __init__(self, gradient: Tensor, *, stack: int) -> None:
        self.gradient, self.stack = gradient, stack
        self.absolute = math.sqrt(gradient.shape[1]) / 2.0

    def norms(self) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(self.gradient, dim=1, dtype=torch.float64)
        return norm, norm

    def gradients(self) -> Tensor:
        return self.gradient

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        gradient = self.gradient.to(working(self.gradient.dtype))
        scaled = torch.round(gradient * (factor / spacing).to(gradient.dtype)[:, None])
        whole = torch.where(factor[:, None] > 0, scaled, 0.0)
        parts = whole.view(self.stack, -1, whole.shape[1]).split(EXACT_UNITS, dim=1)
        return add([part.sum(1, dtype=torch.float64) for part in parts])


def add(parts: list[Tensor]) -> Tensor:
    """The sum of float64 tensors of whole numbers, in int64."""
    total = parts[0].to(torch.int64)
    for part in parts[1:]:
        total = total + part.to(torch.int64)
    return total


def rows_to_units(gradient: Tensor, *, units: int, stack: int) -> PerExample:
    """A gradient for each row, ``[rows, ...]``: the rows of a unit are added."""
    rows = gradient.reshape(units, gradient.shape[0] // units, -1)
    return PerExample(rows[:, 0] if rows.shape[1] == 1 else rows.sum(1, dtype=working(rows.dtype)), stack=stack)


def merge(uses: list[Contribution]) -> Contribution:
    """A parameter used more than once: its gradients are added before the norm, so cross terms count."""
    if len(uses) == 1:
        return uses[0]
    total = uses[0].gradients().to(working(uses[0].gradients().dtype))
    for use in uses[1:]:
        total = total + use.gradients()
    return PerExample(total, stack=uses[0].stack)


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums are formed in: operands in half precision are summed in float32, which holds them exactly."""
    return torch.float64 if dtype == torch.float64 else torch.float32
