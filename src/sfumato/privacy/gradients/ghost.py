"""Ghost clipping: norms and sums from a layer's inputs and output gradients; no unit's gradient is ever formed.

A unit's gradient of a weight is G = Σ_t b_t a_tᵀ over its positions t, a the layer's input and b the gradient of its
output. Its norm is |a| |b| for one position and follows from Gram matrices for several,

    |G|² = Σ_{t,s} ⟨a_t, a_s⟩ ⟨b_t, b_s⟩,

in float64, because the terms cancel: float32 is 3 % short when activations have mean 1e3 and deviation 1.

The sum over units is one product (book-keeping; Bu et al., 2023). To be exact it is a product of whole numbers in
float64: a is scaled to length 2^22 and rounded, f·b takes the length of a and is rounded to the matching grid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.privacy.gradients.contribution import (
    BLOCK,
    Contribution,
    add,
    in_blocks,
    largest_divisor,
    row_norms,
    working,
)
from sfumato.privacy.gradients.fixed_point import EXACT_UNITS, FRACTION_BITS, MOST_SPREAD

_SCALE = 2.0 ** (FRACTION_BITS // 2)
_CANCELLING_UNITS = int(EXACT_UNITS / MOST_SPREAD)


class GhostClipping(Contribution):
    """``a`` is ``[units, positions, inner]``, ``b`` is ``[units, positions, outer]``; the weight ``[outer, inner]``."""

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b
        inner, outer, positions = a.shape[2], b.shape[2], a.shape[1]
        self._length = _lengths(a)
        # |round(a') - a'| ≤ √inner / 2 where |a'| = 2^22; the other rounding is √outer / 2 steps times |round(a')|.
        self.relative = math.sqrt(inner) / (2.0 * _SCALE) * (1.0 + 1e-6)
        self.absolute = positions * math.sqrt(outer) / 2.0 * (_SCALE + math.sqrt(inner))
        self.bytes_per_unit = 16.0 * positions * (inner + outer)
        # Terms of one position are as small as the vector; terms of several may cancel, and fewer units fit.
        self._units = EXACT_UNITS if positions == 1 else _CANCELLING_UNITS
        self._block = max(1, BLOCK // (positions * (inner + outer)))

    def norms(self) -> tuple[Tensor, Tensor]:
        spread = (self._length * _lengths(self.b)).sum(1)
        if self.a.shape[1] == 1:
            return spread, spread
        # Blocks of equal size: a product of another shape may be rounded otherwise.
        size = largest_divisor(len(self.a), self._block) if in_blocks(self.a) else len(self.a)
        squares = [_gram_product(a, b) for a, b in zip(self.a.split(size), self.b.split(size), strict=True)]
        # Rounding may leave a vanishing square a hair below zero; NaN must stay NaN, so no clamp to a number.
        return torch.cat(squares).abs().sqrt(), spread

    def gradients(self) -> Tensor:
        return outer_products(self.a, self.b)

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        if in_blocks(self.a):
            return self._sums_in_blocks(factor, spacing)
        left, right = _whole_numbers(self.a, self.b, self._length, factor, spacing=spacing)
        parts = zip(left.split(self._units), right.split(self._units), strict=True)
        return add([(b.flatten(0, 1).t() @ a.flatten(0, 1)).flatten() for a, b in parts])

    def _sums_in_blocks(self, factor: Tensor, spacing: float) -> Tensor:
        """The same numbers, a few units at a time: the copies in float64 stay in a CPU's cache."""
        total = torch.zeros(self.b.shape[2] * self.a.shape[2], dtype=torch.int64)
        several = (self.a, self.b, self._length, factor)
        for exact in zip(*(value.split(self._units) for value in several), strict=True):
            part = torch.zeros(self.b.shape[2], self.a.shape[2], dtype=torch.float64)
            for few in zip(*(value.split(max(self._block, _CANCELLING_UNITS)) for value in exact), strict=True):
                left, right = (value.flatten(0, 1) for value in _whole_numbers(*few, spacing=spacing))
                part.addmm_(right.t(), left)
            total.add_(part.flatten().to(torch.int64))
        return total


def _gram_product(a: Tensor, b: Tensor) -> Tensor:
    """Each unit's ``Σ_{t,s} ⟨a_t, a_s⟩ ⟨b_t, b_s⟩``."""
    a, b = a.double(), b.double()
    return (torch.bmm(a, a.transpose(1, 2)) * torch.bmm(b, b.transpose(1, 2))).sum((1, 2))


def _whole_numbers(a: Tensor, b: Tensor, length: Tensor, factor: Tensor, *, spacing: float) -> tuple[Tensor, Tensor]:
    """Both operands as whole numbers in float64, 0 where a unit adds nothing."""
    counts = (factor[:, None] > 0) & (length > 0)
    right = factor[:, None] * length / (_SCALE * spacing)
    return _rounded(a, _SCALE / length, counts), _rounded(b, right, counts)


def _rounded(rows: Tensor, scale: Tensor, counts: Tensor) -> Tensor:
    scaled = rows.to(torch.float64, copy=True).mul_(scale[:, :, None]).round_()
    if in_blocks(rows):
        unit, position = (~counts).nonzero(as_tuple=True)  # mostly none
        scaled[unit, position] = 0.0
        return scaled
    return torch.where(counts[:, :, None], scaled, 0.0)


def outer_products(a: Tensor, b: Tensor) -> Tensor:
    """Each unit's Σ_t b_t a_tᵀ, ``[units, outer · inner]``: one batched product over draws and places."""
    if a.shape[1] > 1:
        return torch.bmm(b.transpose(1, 2), a).flatten(1)
    dtype = working(a.dtype)
    return (b[:, 0, :, None].to(dtype) * a[:, 0, None, :].to(dtype)).flatten(1)


def _lengths(rows: Tensor) -> Tensor:
    """The length of every position's vector, ``[units, positions]``."""
    return row_norms(rows.flatten(0, 1)).view(rows.shape[:2])
