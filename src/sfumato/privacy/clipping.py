"""Exact sums of clipped feature vectors, one vector for each unit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.gradients.fixed_point import grid_spacing

MARGIN = 1e-9
"""The clip of a float64 sum aims this much lower, for the rounding of the division."""


def clipped_feature_sum(values: Tensor, batch: Batch, clip_norm: float, classes: int | None) -> Tensor:
    """``[classes or 1, features]`` in whole grid steps, int64. A unit whose vector is not finite counts as zero.

    Rounding to the grid adds at most √d / 2 steps to a vector of d numbers, and the clip aims lower by as much.
    """
    units, k = batch.units, batch.rows_per_unit
    real = batch.weights.flatten() > 0
    rows = torch.where(real[:, None], values.double() * batch.weights.flatten()[:, None].double(), 0.0)
    if k > 1 and classes is not None:
        vectors, slots = rows.new_zeros(units * classes, rows.shape[1]), batch.labels.view(units, k).clone()
        slots += classes * torch.arange(units, device=rows.device)[:, None]
        # One row of each unit at a time: no two go into one slot, where a GPU would add them in any order.
        for place in range(k):
            vectors[slots[:, place]] += rows.view(units, k, -1)[:, place]
        vectors = vectors.view(units, classes * rows.shape[1])
    else:
        vectors = rows.view(units, k, -1).sum(1) if k > 1 else rows
    norms = vectors.norm(dim=1, keepdim=True)
    finite = torch.isfinite(norms)
    spacing = grid_spacing(clip_norm)
    target = clip_norm * (1 - MARGIN) - math.sqrt(vectors.shape[1]) / 2 * spacing
    factors = torch.where(finite, (target / norms.clamp(min=1e-300)).clamp(max=1.0), 0.0)
    vectors = torch.where(finite, vectors, 0.0) * factors
    vectors = torch.round(vectors / spacing).to(torch.int64)
    if classes is None:
        return vectors.sum(0, keepdim=True)
    if k > 1:
        return vectors.sum(0).view(classes, -1)
    return vectors.new_zeros(classes, vectors.shape[1]).index_add_(0, batch.labels, vectors)
