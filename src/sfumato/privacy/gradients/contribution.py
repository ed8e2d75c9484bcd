"""What one use of one parameter adds to each unit's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from sfumato.privacy.gradients.rounding import working


class Norms(NamedTuple):
    """Each unit's norm as a product of one or two lengths ``[units]``, and its spread; None: the norm itself."""

    first: Tensor
    second: Tensor | None = None
    spread: Tensor | None = None

    @property
    def norm(self) -> Tensor:
        first = self.first.double() + FLOOR
        return first if self.second is None else first * (self.second.double() + FLOOR)


FLOOR = 1e-15
"""A square below float32's smallest number, 1.2e-38, is lost in a float32 sum. This is more than can have been lost
from 1e8 of them, and it is added to every length, so that no norm is ever short."""


def gather(norms: list[Norms]) -> tuple[Tensor, Tensor]:
    """Squared norm and squared spread of several parameters together, in few operations on the device."""
    pairs = [n for n in norms if n.second is not None]
    singles = [n for n in norms if n.second is None and n.spread is None]
    spread_out = [n for n in norms if n.spread is not None]
    squared = []
    if pairs:
        first = torch.stack([n.first for n in pairs]).double() + FLOOR
        second = torch.stack([n.second for n in pairs if n.second is not None]).double() + FLOOR
        squared.append((first * second).square().sum(0))
    if singles:
        squared.append((torch.stack([n.first for n in singles]).double() + FLOOR).square().sum(0))
    spread = list(squared)
    if spread_out:
        squared.append((torch.stack([n.first for n in spread_out]).double() + FLOOR).square().sum(0))
        spread.append(torch.stack([n.spread for n in spread_out if n.spread is not None]).square().sum(0))
    return sum(squared[1:], squared[0]), sum(spread[1:], spread[0])


class Length:
    """The norms of the rows of a tensor, computed when first asked for and shared by all who need them."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._value: Tensor | None = None

    def value(self, *, exact: bool) -> Tensor:
        if self._value is None:
            self._value = lengths(self.rows, exact=exact)
        return self._value


def lengths(rows: Tensor, *, exact: bool) -> Tensor:
    """Each row's norm, relative error below 5e-7, in float32 unless that cannot hold it.

    float32 sums run over short blocks only. Squares too small for it are what ``FLOOR`` is for; a sum too large gives
    infinity, and the engine then asks again with ``exact``.
    """
    if exact or rows.dtype == torch.float64:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    width = rows.shape[1]
    block = _BLOCK_CUDA if rows.is_cuda else _BLOCK
    if width <= block:
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32)
    whole = width // block * block
    norms = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, block)), dim=2, dtype=torch.float32)
    if whole < width:
        tail = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True, dtype=torch.float32)
        norms = torch.cat([norms, tail], dim=1)
    return torch.linalg.vector_norm(norms, dim=1, dtype=torch.float32 if width <= block**2 else torch.float64)


_BLOCK, _BLOCK_CUDA = 256, 4096


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
