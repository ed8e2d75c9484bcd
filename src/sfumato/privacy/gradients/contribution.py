"""What one use of one parameter adds to each unit's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sfumato.privacy.gradients.norms import Length, Norms, lengths
from sfumato.privacy.gradients.rounding import working


class Contribution(ABC):
    """``units`` are side by side; with ``stack`` class models the first ``units / stack`` belong to the first model."""

    units: int
    stack: int
    numel: int
    dtypes: tuple[torch.dtype, ...]
    bytes: int
    exact: bool = False
    """Sum squares in float64 throughout: for numbers whose squares leave float32."""

    @abstractmethod
    def norms(self) -> Norms:
        """Each unit's norm and spread (see ``precision``)."""

    @abstractmethod
    def spread(self) -> Tensor:
        """Each unit's spread, float64 ``[units]``."""

    @abstractmethod
    def instantiate(self, start: int, stop: int) -> Tensor:
        """The gradients of the units ``start`` to ``stop``, ``[stop - start, numel]``."""

    @abstractmethod
    def weighted(self, factor: Tensor) -> Tensor:
        """``Σ_u factor_u · gradient_u`` for each stacked model, ``[stack, numel]``."""


class Dense(Contribution):
    """Small gradients, held as they are: biases, affine scales, bare parameters."""

    def __init__(self, gradient: Tensor, *, units: int, stack: int, length: Length | None = None) -> None:
        """``gradient`` is ``[rows, ...]``; the rows of a unit are summed before anything else. ``length`` may be shared
        by whoever holds the same tensor, if a unit is a row."""
        rows = gradient.reshape(units, gradient.shape[0] // units, -1)
        self.gradient = rows[:, 0] if rows.shape[1] == 1 else rows.sum(1, dtype=working(rows.dtype))
        self.length = length or Length(self.gradient)
        self.units, self.stack, self.numel = units, stack, self.gradient.shape[1]
        self.dtypes = (gradient.dtype,)
        self.bytes = self.gradient.numel() * self.gradient.element_size()

    def norms(self) -> Norms:
        return Norms(self.length.value(exact=self.exact))

    def spread(self) -> Tensor:
        return self.norms().norm

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.gradient[start:stop]

    def weighted(self, factor: Tensor) -> Tensor:
        return weigh(factor, self.gradient, self.stack)


def weigh(factor: Tensor, gradients: Tensor, stack: int) -> Tensor:
    """``[units], [units, numel] → [stack, numel]``."""
    gradients = gradients.to(working(gradients.dtype))
    factor = factor.to(gradients.dtype)
    if stack == 1:
        return factor[None] @ gradients
    return torch.bmm(factor.view(stack, 1, -1), gradients.view(stack, factor.shape[0] // stack, -1))[:, 0]


class Several(Contribution):
    """A parameter used more than once: the uses' gradients are added before the norm, so cross terms count."""

    def __init__(self, uses: list[Contribution]) -> None:
        self.uses = uses
        self.units, self.stack, self.numel = uses[0].units, uses[0].stack, uses[0].numel
        self.dtypes = tuple(dtype for use in uses for dtype in use.dtypes)
        self.bytes = sum(use.bytes for use in uses)

    def norms(self) -> Norms:
        size = max(1, (1 << 25) // self.numel)
        parts = [(start, min(self.units, start + size)) for start in range(0, self.units, size)]
        whole = torch.cat([lengths(self.instantiate(*part), exact=self.exact) for part in parts])
        return Norms(whole, None, self.spread())

    def spread(self) -> Tensor:
        return torch.stack([use.spread() for use in self.uses]).sum(0)

    def instantiate(self, start: int, stop: int) -> Tensor:
        total = self.uses[0].instantiate(start, stop)
        for use in self.uses[1:]:
            total = total + use.instantiate(start, stop)
        return total

    def weighted(self, factor: Tensor) -> Tensor:
        return torch.stack([use.weighted(factor).double() for use in self.uses]).sum(0)
