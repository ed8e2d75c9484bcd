"""Exact sums of outer products of clipped rows: second moments, and covariances after a mean was taken out.

A unit's rows, each times the root of its weight, are clipped together to norm C. Their outer products then add up to a
matrix S with ‖S‖_F ≤ Σ‖v‖² ≤ C²; with classes a row's product goes into the slice of its class, and the norm over all
slices is no larger. So one unit moves the sum by at most C², in the norm that half-vectorisation keeps.

The rows are rounded to whole multiples of g = 2^-20 · 2^⌊log2 C⌋. Products are multiples of g², and those of one unit
add up to less than 2^42 of them at every place, so a product of matrices with up to 2^11 units is exact in float64, in
any order of its terms. Further sums are kept in int64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.privacy.clipping import MARGIN
from sfumato.privacy.gradients.batch import Batch

_FRACTION_BITS = 20
_MOST_UNITS = 1 << 11


def moment_spacing(clip_norm: float) -> float:
    """The spacing of the grid for products of rows whose unit has this norm: a power of two."""
    return _row_spacing(clip_norm) ** 2


def clipped_moment_sum(values: Tensor, batch: Batch, clip_norm: float, classes: int | None) -> Tensor:
    """``[classes or 1, d (d + 1) / 2]``: upper triangles in whole grid steps, int64, of rows ``[rows, d]``.

    A unit whose rows are not finite counts as zero. The clip aims lower by what rounding can add.
    """
    if batch.units > _MOST_UNITS:
        raise ValueError(f"at most {_MOST_UNITS} units are added exactly at once, not {batch.units}")
    weights, size = batch.weights.flatten()[:, None].double(), values.shape[1]
    rows = torch.where(weights > 0, values.double() * weights.sqrt(), 0.0)
    units = rows.view(batch.units, -1)
    norms = units.norm(dim=1, keepdim=True)
    finite, spacing = torch.isfinite(norms), _row_spacing(clip_norm)
    target = clip_norm * (1 - MARGIN) - math.sqrt(units.shape[1]) / 2 * spacing
    if target <= 0:
        raise ValueError("the rows are too long for this grid")
    factors = torch.where(finite, (target / norms.clamp(min=1e-300)).clamp(max=1.0), 0.0)
    whole = torch.round(torch.where(finite, units, 0.0) * factors / spacing).view(-1, size)
    upper = torch.triu_indices(size, size, device=rows.device)
    members = [whole] if classes is None else [whole[batch.labels == label] for label in range(classes)]
    return torch.stack([(part.T @ part)[upper[0], upper[1]] for part in members]).to(torch.int64)


def half_vector(upper: Tensor, size: int) -> Tensor:
    """Upper triangles of symmetric matrices as vectors of the matrices' Frobenius norm: √2 off the diagonal."""
    return upper * _weights(size, upper)


def symmetric(vector: Tensor, size: int) -> Tensor:
    """The matrices ``[..., size, size]`` of half-vectors ``[..., size (size + 1) / 2]``."""
    rows, columns = torch.triu_indices(size, size, device=vector.device)
    found = vector.new_zeros(*vector.shape[:-1], size, size)
    found[..., rows, columns] = vector / _weights(size, vector)
    return found + found.triu(1).transpose(-1, -2)


def _weights(size: int, like: Tensor) -> Tensor:
    rows, columns = torch.triu_indices(size, size, device=like.device)
    return torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(like)


def _row_spacing(clip_norm: float) -> float:
    if not 2.0**-30 < clip_norm < 2.0**30:
        raise ValueError(f"the clip norm must lie between 2^-30 and 2^30, not {clip_norm}")
    return 2.0 ** (math.floor(math.log2(clip_norm)) - _FRACTION_BITS)
