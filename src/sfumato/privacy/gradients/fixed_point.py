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

_FOLD_AFTER = 1 << 17  # units whose sum int64 certainly holds: 2^45 · 2^17 < 2^63


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
    """The running total, parameter name → whole numbers of grid steps."""

    def __init__(self, spacings: Mapping[str, float]) -> None:
        self._spacings = spacings
        self._steps: dict[str, Tensor] = {}
        self._folded: dict[str, Tensor] = {}
        self._units = 0

    def add(self, sums: Mapping[str, Tensor], units: int) -> None:
        """Add int64 vectors of grid steps that came from this many units."""
        if self._units + units > _FOLD_AFTER:
            self._folded = self.values()
            self._steps, self._units = {}, 0
        self._units += units
        for name, steps in sums.items():
            self._steps[name] = self._steps[name] + steps if name in self._steps else steps

    def merge(self, other: FixedPointSum) -> None:
        """Add another sum on the same grids."""
        self.add(other._steps, other._units)
        for name, value in other._folded.items():
            self._folded[name] = self._folded[name] + value if name in self._folded else value

    def values(self) -> dict[str, Tensor]:
        """Parameter name → the total in float64, flat; a parameter that nothing was added to is not there."""
        found = {name: steps.double() * self._spacings[name] for name, steps in self._steps.items()}
        for name, value in self._folded.items():
            found[name] = found[name] + value if name in found else value
        return found
