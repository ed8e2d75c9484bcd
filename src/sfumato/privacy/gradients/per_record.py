"""Which way a weight's gradients are found: per record, or by ghost clipping. Public shapes decide, nothing else.

A unit's gradient of a weight is a product over its positions, ``[outer, positions] × [positions, inner]``. With many
draws or many places the inner dimension of that product is long: forming every unit's gradient is as fast as the
ordinary backward pass, and the norm and the exact sum read what was formed (``PerExample``). With one position the
gradient is an outer product, and forming it would only move memory: there ghost clipping is the faster way.

A choice by timing, or by the number of units, would let one record change the rounding of all the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.privacy.gradients.contribution import Contribution, PerExample, working
from sfumato.privacy.gradients.ghost import GhostClipping, outer_products

_MEMORY_COST = 48.0
"""Multiplications that take as long as writing, measuring and adding one number of a gradient on a CPU."""

_MOST_ROUNDING = 1e-4
"""The share of a clip norm that ghost clipping may leave free for rounding."""


def prefers_ghost(*, positions: int, inner: int, outer: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether ghost clipping is the faster way to these gradients."""
    if dtype == torch.float64:
        return False  # float64 models are checked against the loop, more closely than 22-bit factors allow
    # What the rounding of both factors takes off the clip norm (``GhostClipping``).
    if (math.sqrt(inner) + positions * math.sqrt(outer)) / 2.0**23 > _MOST_ROUNDING:
        return False
    if device.type == "cuda":
        return positions == 1
    weight = float(inner * outer)
    # Products in float64 count twice.
    ghost = 2.0 * positions**2 * (inner + outer) + 2.0 * positions * weight
    return ghost < (positions + _MEMORY_COST) * weight


def weight_gradients(a: Tensor, b: Tensor) -> Contribution:
    """The contribution of a weight ``[outer, inner]`` from ``a`` ``[units, positions, inner]`` and ``b``."""
    shape = {"positions": a.shape[1], "inner": a.shape[2], "outer": b.shape[2]}
    if prefers_ghost(**shape, dtype=a.dtype, device=a.device):
        return GhostClipping(a, b)
    return PerExample(outer_products(a, b))


class Reordered(Contribution):
    """A weight whose gradient was formed with its dimensions in another order: only the sums are put in order."""

    def __init__(self, inner: Contribution, order: Callable[[Tensor], Tensor]) -> None:
        self.inner, self.order = inner, order
        self.relative, self.absolute = inner.relative, inner.absolute
        self.bytes_per_unit = inner.bytes_per_unit

    def norms(self) -> tuple[Tensor, Tensor]:
        return self.inner.norms()

    def gradients(self) -> Tensor:
        found = self.inner.gradients()
        return self.order(found.to(working(found.dtype)))

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        return self.order(self.inner.sums(factor, spacing)[None])[0]
