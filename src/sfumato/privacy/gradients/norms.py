"""Norms of rows and of products, with a relative error far below the margin of the clip."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
