"""Measures on latent codes: how sparse they are, and how far their distribution is from the prior."""

from __future__ import annotations

import torch
from torch import Tensor

CAUCHY_SCALES = (0.2, 0.4, 1.0, 2.0, 4.0, 10.0)
"""The scales of PRIVAE's sum of Cauchy kernels."""


def hoyer_sparsity(codes: Tensor) -> float:
    """Mean Hoyer measure of codes ``[N, d]``, each dimension divided by its deviation over the set (PRIVAE, eq. 17).

    0 is fully dense, 1 has one dimension only. A dimension that never moves says nothing and counts as zero; a code
    that is zero everywhere (a collapsed posterior) has no direction and counts as dense, so that nothing is NaN.
    """
    if codes.ndim != 2 or len(codes) < 2 or codes.shape[1] < 2:
        raise ValueError(f"codes must be [at least 2 codes, at least 2 dimensions], not {tuple(codes.shape)}")
    codes = codes.double()
    deviation = codes.std(dim=0, unbiased=False)
    scaled = torch.where(deviation > 0, codes / deviation.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    ones, twos = scaled.abs().sum(dim=1), scaled.norm(dim=1)
    root = codes.shape[1] ** 0.5
    ratio = torch.where(twos > 0, ones / twos.clamp(min=torch.finfo(torch.float64).tiny), root)
    return float(((root - ratio) / (root - 1)).mean())


def maximum_mean_discrepancy(
    first: Tensor, second: Tensor, *, scales: tuple[float, ...] = CAUCHY_SCALES, chunk: int = 512
) -> float:
    """Unbiased squared MMD with the kernel Σ_d Σ_s s / (s + (x_d − y_d)²), dimension by dimension."""
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise ValueError(f"both sets must be [codes, the same d], not {tuple(first.shape)} and {tuple(second.shape)}")
    if min(len(first), len(second)) < 2:
        raise ValueError("the unbiased MMD needs at least two codes on each side")
    first, second = first.double(), second.double()
    itself = first.shape[1] * len(scales)
    within = [
        (_kernel_sum(values, values, scales, chunk) - itself * len(values)) / (len(values) * (len(values) - 1))
        for values in (first, second)
    ]
    between = _kernel_sum(first, second, scales, chunk) / (len(first) * len(second))
    return within[0] + within[1] - 2 * between


def _kernel_sum(first: Tensor, second: Tensor, scales: tuple[float, ...], chunk: int) -> float:
    total = 0.0
    for dimension in range(first.shape[1]):
        column = second[:, dimension]
        for part in first[:, dimension].split(chunk):
            squares = (part[:, None] - column).square()
            total += float(sum((scale / (scale + squares)).sum() for scale in scales))
    return total
