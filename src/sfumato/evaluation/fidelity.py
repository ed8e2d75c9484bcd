"""Distances between two sets of features: FID, KID, precision, recall, density, coverage."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn

ROWS_KEPT = 10_000
"""KID, precision, recall, density and coverage use at most so many rows, because their cost grows quadratically."""


@dataclass(frozen=True)
class FeatureStatistics:
    """A feature set as the metrics use it: count, mean and covariance of all rows, and the first rows themselves."""

    count: int
    mean: Tensor
    covariance: Tensor
    rows: Tensor


def statistics(features: Tensor) -> FeatureStatistics:
    """Mean and covariance in float64, the covariance divided by N − 1."""
    if len(features) < 2:
        raise ValueError("a covariance needs at least two images")
    mean = features.mean(dim=0, dtype=torch.float64)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=features.device)
    for part in features.split(8 * _CHUNK):
        centred = part.double() - mean
        covariance += centred.T @ centred
    return FeatureStatistics(len(features), mean, covariance / (len(features) - 1), features[:ROWS_KEPT])


def frechet_distance(first: FeatureStatistics, second: FeatureStatistics) -> float:
    """‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½), FID when the features are Inception's (Heusel et al., 2017).

    tr (Σ₁Σ₂)^½ = tr (Σ₁^½ Σ₂ Σ₁^½)^½ is a sum over the eigenvalues of a symmetric matrix, real by construction. With
    fewer rows than dimensions the same trace is the sum of the singular values of the centred rows' products, a smaller
    matrix.
    """
    offset = (first.mean - second.mean).square().sum()
    traces = first.covariance.trace() + second.covariance.trace()
    dimension = len(first.mean)
    if first.count == len(first.rows) < dimension and second.count == len(second.rows) < dimension:
        left = (first.rows.double() - first.mean) / (first.count - 1) ** 0.5
        right = (second.rows.double() - second.mean) / (second.count - 1) ** 0.5
        overlap = torch.linalg.svdvals(left @ right.T).sum()
    else:
        values, vectors = torch.linalg.eigh(first.covariance)
        root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
        overlap = torch.linalg.eigvalsh(root @ second.covariance @ root).clamp(min=0).sqrt().sum()
    return float(offset + traces - 2 * overlap)


def kernel_distance(
    reference: FeatureStatistics,
    candidate: FeatureStatistics,
    *,
    subsets: int = 100,
    subset_size: int | None = None,
    seed: int = 0,
) -> tuple[float, float, int]:
    """KID (Bińkowski et al., 2018) by torchmetrics: mean and standard deviation over random subsets, and their size.

    The size is 1,000, or half the smaller set if that is less: subsets as large as the set would all be the set, and
    the deviation zero.
    """
    try:
        from torchmetrics.image.kid import KernelInceptionDistance
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("KID needs torchmetrics: pip install 'sfumato[eval]'") from error
    size = subset_size or min(1000, len(reference.rows) // 2, len(candidate.rows) // 2)
    if size < 2:
        raise ValueError("KID needs at least four images on each side")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.manual_seed(seed)
        metric = KernelInceptionDistance(feature=nn.Identity(), subsets=subsets, subset_size=size)
        metric.update(reference.rows, real=True)
        metric.update(candidate.rows, real=False)
        mean, deviation = metric.compute()
    return float(mean), float(deviation), size


@dataclass(frozen=True)
class Manifold:
    """Precision and recall (Kynkäänniemi et al., 2019), density and coverage (Naeem et al., 2020)."""

    precision: float
    recall: float
    density: float
    coverage: float


def manifold(reference: Tensor, candidate: Tensor, *, neighbours: int = 5) -> Manifold:
    """Precision, recall, density and coverage by balls that reach to each row's k-th nearest neighbour in its set.

    Always finite: identical rows have balls of radius zero, which contain only themselves.
    """
    if min(len(reference), len(candidate)) <= neighbours:
        raise ValueError(f"precision and recall need more than {neighbours} images on each side")
    reference_radius, candidate_radius = _radii(reference, neighbours), _radii(candidate, neighbours)
    inside = balls = 0
    covered = torch.zeros(len(reference), dtype=torch.bool, device=reference.device)
    recalled = torch.zeros_like(covered)
    for part, radius in zip(candidate.split(_CHUNK), candidate_radius.split(_CHUNK), strict=True):
        distances = _distances(part, reference)
        within = distances <= reference_radius
        inside += int(within.any(dim=1).sum())
        balls += int(within.sum())
        covered |= within.any(dim=0)
        recalled |= (distances <= radius[:, None]).any(dim=0)
    return Manifold(
        precision=inside / len(candidate),
        recall=int(recalled.sum()) / len(reference),
        density=balls / (neighbours * len(candidate)),
        coverage=int(covered.sum()) / len(reference),
    )


_CHUNK = 1024


def _distances(first: Tensor, second: Tensor) -> Tensor:
    # float64: the product form of a distance loses half the digits, and near rows are what matters here.
    return torch.cdist(first.double(), second.double())


def _radii(rows: Tensor, neighbours: int) -> Tensor:
    # The nearest row of all is the row itself, hence one more.
    return torch.cat([_distances(part, rows).kthvalue(neighbours + 1, dim=1).values for part in rows.split(_CHUNK)])
