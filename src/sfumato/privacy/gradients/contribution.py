"""What one use of one parameter adds to each unit's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sfumato.privacy.gradients.precision import working


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
    def squared_norm(self) -> tuple[Tensor, Tensor | None]:
        """Each unit's squared norm and spread (see ``precision``), float64 ``[units]``; None: the norm itself."""

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
        rows = gradient.reshape(units, gradient.shape[0] // units, -1)
        self.gradient = rows[:, 0] if rows.shape[1] == 1 else rows.sum(1, dtype=working(rows.dtype))
        self.units, self.stack, self.numel = units, stack, self.gradient.shape[1]
        self.dtypes = (gradient.dtype,)
        self.bytes = self.gradient.numel() * self.gradient.element_size()

    def squared_norm(self) -> tuple[Tensor, None]:
        return squares(self.gradient, exact=self.exact), None

    def spread(self) -> Tensor:
        return squares(self.gradient, exact=self.exact).sqrt()

    def instantiate(self, start: int, stop: int) -> Tensor:
        return self.gradient[start:stop]

    def weighted(self, factor: Tensor) -> Tensor:
        return weigh(factor, self.gradient, self.stack)


def lengths(rows: Tensor, *, exact: bool) -> Tensor:
    """Each row's norm, or a little more: relative error below 5e-7, in float32 unless that cannot hold it.

    float32 sums run over short blocks only. A square below float32's smallest number is lost; the floor puts back the
    most that can have been lost, so that the answer is never short. A sum beyond its largest gives infinity, and the
    engine then asks again with ``exact``.
    """
    if exact or rows.dtype == torch.float64:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    width = rows.shape[1]
    block = _BLOCK_CUDA if rows.is_cuda else _BLOCK
    floor = (width * _LOST) ** 0.5
    if width <= block:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32).double() + floor
    whole = width // block * block
    norms = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, block)), dim=2, dtype=torch.float32)
    if whole < width:
        tail = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True, dtype=torch.float32)
        norms = torch.cat([norms, tail], dim=1)
    return torch.linalg.vector_norm(norms, dim=1, dtype=torch.float64) + floor


_BLOCK, _BLOCK_CUDA = 256, 4096
_LOST = 1.2e-38


def squares(rows: Tensor, *, exact: bool) -> Tensor:
    """Each row's sum of squares, float64."""
    return lengths(rows, exact=exact).square()


def weigh(factor: Tensor, gradients: Tensor, stack: int) -> Tensor:
    """``[units], [units, numel] → [stack, numel]``."""
    gradients = gradients.to(working(gradients.dtype))
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

    def squared_norm(self) -> tuple[Tensor, Tensor | None]:
        size = max(1, (1 << 25) // self.numel)
        parts = [(start, min(self.units, start + size)) for start in range(0, self.units, size)]
        return torch.cat([squares(self.instantiate(*part), exact=self.exact) for part in parts]), self.spread()

    def spread(self) -> Tensor:
        return torch.stack([use.spread() for use in self.uses]).sum(0)

    def instantiate(self, start: int, stop: int) -> Tensor:
        total = self.uses[0].instantiate(start, stop)
        for use in self.uses[1:]:
            total = total + use.instantiate(start, stop)
        return total

    def weighted(self, factor: Tensor) -> Tensor:
        return torch.stack([use.weighted(factor).double() for use in self.uses]).sum(0)
