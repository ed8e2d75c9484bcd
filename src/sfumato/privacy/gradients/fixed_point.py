"""Exact sums: every unit's clipped vector is rounded to a grid, and multiples of a grid are added without error.

For a clip norm C the grid has the spacing g = 2^-44 · 2^⌊log2 C⌋, so a coordinate of a clipped vector is a whole number
below 2^45. Sums of up to 256 such numbers are exact in float64, in any order and on any device, and further sums are
kept in int64. Hence the total is the same whatever the order of the units and however they are packed
into microbatches, and removing a unit moves it by that unit's vector and nothing else.

Rounding moves a vector by at most ``absolute`` grid steps and ``relative`` times its spread (``Contribution``). The
clip aims lower by both, so the rounded vector has norm at most C. ``MARGIN`` pays for the float32 product of vector and
factor (2^-24 relative) and for the last rounding of the total to float64 (2^-53 of a sum of n vectors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

MARGIN = 1e-6
"""The share of the clip norm that is left free for floating-point rounding."""

FRACTION_BITS = 44
EXACT_UNITS = 256
"""Units whose vectors float64 adds exactly: 2^45 · 2^8 = 2^53."""

MOST_SPREAD = 16.0
"""A unit's spread after the clip, in clip norms: it bounds the terms of a unit before they cancel."""

_CARRY_AFTER = 1 << 17  # units whose sum int64 certainly holds: 2^45 · 2^17 < 2^63
_LIMB = 32  # bits of the low part of a total


def grid_spacing(clip_norm: float) -> float:
    """The spacing of the grid for vectors of this norm: a power of two."""
    if not 2.0**-60 < clip_norm < 2.0**60:
        raise ValueError(f"the clip norm must lie between 2^-60 and 2^60, not {clip_norm}")
    return 2.0 ** (math.floor(math.log2(clip_norm)) - FRACTION_BITS)


def clip_factors(norm: Tensor, spread: Tensor, *, rounding: Tensor, clip_norm: float, absolute: float) -> Tensor:
    """What each unit's vector is multiplied with, float64 ``[units]``; 0 for a unit whose norm is not finite.

    With factor f the rounded vector has norm at most f·(norm + rounding) + absolute·g, which is at most the clip norm.
    """
    target = clip_norm * (1.0 - MARGIN) - absolute * grid_spacing(clip_norm)
    if target <= 0:
        raise ValueError("the model has too many parameters for this grid")
    factor = (target / (norm + rounding).clamp(min=1e-300)).clamp(max=1.0)
    factor = torch.minimum(factor, MOST_SPREAD * clip_norm / spread.clamp(min=1e-300))
    # NaN compares false; a norm beyond float32 means that a gradient overflowed.
    return torch.where(norm <= torch.finfo(torch.float32).max, factor, 0.0)


class FixedPointSum:
    """The running total, parameter name → whole numbers of grid steps.

    A total of many units does not fit into 64 bits. It is kept as ``high · 2^32 + low``, so that no number of units, in
    no number of processes, needs rounding before the last conversion to float64.
    """

    def __init__(self, spacings: Mapping[str, float]) -> None:
        self._spacings = spacings
        self._low: dict[str, Tensor] = {}
        self._high: dict[str, Tensor] = {}
        self._units = 0

    def add(self, sums: Mapping[str, Tensor], units: int) -> None:
        """Add int64 vectors of grid steps that came from this many units."""
        if self._units + units > _CARRY_AFTER:
            self._carry()
        self._units += units
        _add(self._low, sums)

    def merge(self, other: FixedPointSum) -> None:
        """Add another sum on the same grids."""
        self.add(other._low, other._units)
        _add(self._high, other._high)

    def limbs(self, sizes: Mapping[str, int], device: torch.device) -> Tensor:
        """The whole total, int64 ``[2, n]``: high and low parts, of the parameters of these sizes in this order."""
        self._carry()
        parts = []
        for name, size in sizes.items():
            zero = torch.zeros(size, dtype=torch.int64, device=device)
            parts.append(torch.stack([self._high.get(name, zero).flatten(), self._low.get(name, zero).flatten()]))
        return torch.cat(parts, 1) if parts else torch.zeros(2, 0, dtype=torch.int64, device=device)

    def values(self, limbs: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Parameter name → the total in float64, flat, from the sum of several processes' ``limbs``.

        One rounding: both products are exact, and only their sum is rounded.
        """
        high, low = limbs[0] + (limbs[1] >> _LIMB), limbs[1] & (2**_LIMB - 1)
        total = high.double() * 2.0**_LIMB + low.double()
        parts = total.split(list(sizes.values()))
        return {name: part * self._spacings[name] for name, part in zip(sizes, parts, strict=True)}

    def _carry(self) -> None:
        """Leave less than 2^32 in every low part, which is no more than what one unit adds."""
        _add(self._high, {name: low >> _LIMB for name, low in self._low.items()})
        self._low = {name: low & (2**_LIMB - 1) for name, low in self._low.items()}
        self._units = 1


def _add(total: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value
