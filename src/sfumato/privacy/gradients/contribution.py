"""What one use of one parameter adds to each unit's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Contribution(ABC):
    """``units`` are side by side; with ``stack`` class models the first ``units / stack`` belong to the first model."""

    units: int
    stack: int
    numel: int
    dtypes: tuple[torch.dtype, ...]
    bytes: int

    @abstractmethod
    def squared_norm(self) -> tuple[Tensor, Tensor]:
        """Each unit's squared norm and spread (see ``precision``), float64 ``[units]``."""

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

    def __init__(self, gradient: Tensor, *, units: int, stack: int) -> None:
        """``gradient`` is ``[rows, ...]``; the rows of a unit are summed before anything else."""
        self.gradient = gradient.reshape(units, -1, gradient[0].numel()).sum(1, dtype=_at_least_single(gradient))
        self.units, self.stack, self.numel = units, stack, self.gradient.shape[1]
        self.dtypes = (gradient.dtype,)
        self.bytes = self.gradient.numel() * self.gradient.element_size()

    def squared_norm(self) -> tuple[Tensor, Tensor]:
        squared = squares(self.gradient)
        return squared, squared.sqrt()

    def spread(self) -> Tensor:
        return squares(self.gradient).sqrt()

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.gradient[start:stop]

    def weighted(self, factor: Tensor) -> Tensor:
        return weigh(factor, self.gradient, self.stack)


def _at_least_single(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def squares(rows: Tensor) -> Tensor:
    """Each row's sum of squares in float64: squares of float32 numbers under- and overflow float32."""
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()


def weigh(factor: Tensor, gradients: Tensor, stack: int) -> Tensor:
    """``[units], [units, numel] → [stack, numel]``."""
    factor = factor.to(gradients.dtype)
    if stack == 1:
        return (factor[None] @ gradients.flatten(1)).view(1, -1)
    return torch.bmm(factor.view(stack, 1, -1), gradients.view(stack, factor.shape[0] // stack, -1))[:, 0]


class Several(Contribution):
    """A parameter used more than once: the uses' gradients are added before the norm, so cross terms count."""

    def __init__(self, uses: list[Contribution]) -> None:
        self.uses = uses
        self.units, self.stack, self.numel = uses[0].units, uses[0].stack, uses[0].numel
        self.dtypes = tuple(dtype for use in uses for dtype in use.dtypes)
        self.bytes = sum(use.bytes for use in uses)

    def squared_norm(self) -> tuple[Tensor, Tensor]:
        size = max(1, (1 << 25) // self.numel)
        parts = [(start, min(self.units, start + size)) for start in range(0, self.units, size)]
        return torch.cat([squares(self.instantiate(*part)) for part in parts]), self.spread()

    def spread(self) -> Tensor:
        return torch.stack([use.spread() for use in self.uses]).sum(0)

    def instantiate(self, start: int, stop: int) -> Tensor:
        total = self.uses[0].instantiate(start, stop)
        for use in self.uses[1:]:
            total = total + use.instantiate(start, stop)
        return total

    def weighted(self, factor: Tensor) -> Tensor:
        return torch.stack([use.weighted(factor).double() for use in self.uses]).sum(0)
