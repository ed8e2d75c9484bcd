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

from sfumato.privacy.gradients.contribution import Contribution, add, working
from sfumato.privacy.gradients.fixed_point import EXACT_UNITS, FRACTION_BITS, MOST_SPREAD

_SCALE = 2.0 ** (FRACTION_BITS // 2)
_CANCELLING_UNITS = int(EXACT_UNITS / MOST_SPREAD)


class GhostClipping(Contribution):
    """``a`` is ``[units, positions, inner]``, ``b`` is ``[units, positions, outer]``; the weight ``[outer, inner]``."""

    def __init__(self, a: Tensor, b: Tensor, *, stack: int) -> None:
        self.a, self.b, self.stack = a, b, stack
        inner, outer, positions = a.shape[2], b.shape[2], a.shape[1]
        # |round(a') - a'| ≤ √inner / 2 where |a'| = 2^22; the other rounding is √outer / 2 steps times |round(a')|.
        self.relative = math.sqrt(inner) / (2.0 * _SCALE) * (1.0 + 1e-6)
        self.absolute = positions * math.sqrt(outer) / 2.0 * (_SCALE + math.sqrt(inner))

    def norms(self) -> tuple[Tensor, Tensor]:
        spread = (_lengths(self.a) * _lengths(self.b)).sum(1)
        if self.a.shape[1] == 1:
            return spread, spread
        a, b = self.a.double(), self.b.double()
        left, right = torch.bmm(a, a.transpose(1, 2)), torch.bmm(b, b.transpose(1, 2))
        # Rounding may leave a vanishing square a hair below zero; NaN must stay NaN, so no clamp to a number.
        return (left * right).sum((1, 2)).abs().sqrt(), spread

    def gradients(self) -> Tensor:
        return outer_products(self.a, self.b)

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        length = _lengths(self.a)
        counts = ((factor[:, None] > 0) & (length > 0))[:, :, None]
        left = torch.round(self.a.double() * (_SCALE / length)[:, :, None])
        right = torch.round(self.b.double() * (factor[:, None] * length / (_SCALE * spacing))[:, :, None])
        left, right = (torch.where(counts, value, 0.0) for value in (left, right))
        left, right = (value.view(self.stack, -1, *value.shape[1:]) for value in (left, right))
        # Terms of one position are as small as the vector; terms of several may cancel, and fewer units fit.
        size = EXACT_UNITS if left.shape[2] == 1 else _CANCELLING_UNITS
        parts = zip(left.split(size, dim=1), right.split(size, dim=1), strict=True)
        return add([torch.bmm(b.flatten(1, 2).transpose(1, 2), a.flatten(1, 2)).flatten(1) for a, b in parts])


def outer_products(a: Tensor, b: Tensor) -> Tensor:
    """Each unit's Σ_t b_t a_tᵀ, ``[units, outer · inner]``: one batched product over draws and places."""
    if a.shape[1] > 1:
        return torch.bmm(b.transpose(1, 2), a).flatten(1)
    dtype = working(a.dtype)
    return (b[:, 0, :, None].to(dtype) * a[:, 0, None, :].to(dtype)).flatten(1)


def _lengths(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64)
