"""Measures on log-densities: out-of-distribution detection, and the likelihood of held-out images."""

from __future__ import annotations

import math

import numpy as np


def out_of_distribution_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Probability that an image of the distribution has a higher log-density than another one; ties count one half.

    ``inside`` and ``outside`` are log-densities, one number per image. Infinite ones are
    ordered like numbers; NaN cannot be ordered and is refused.
    """
    from scipy.stats import rankdata

    inside, outside = _flat(inside, "inside"), _flat(outside, "outside")
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    wins = ranks.sum() - len(inside) * (len(inside) + 1) / 2
    return float(wins / (len(inside) * len(outside)))


def log_likelihood(log_density: np.ndarray, *, dimensions: int) -> dict[str, float | int | None]:
    """Mean and standard deviation in nats, and bits per dimension; ``None`` where an image has density zero."""
    values = _flat(log_density, "log_density")
    if dimensions < 1:
        raise ValueError(f"dimensions must be at least 1, not {dimensions}")
    impossible = int(np.isneginf(values).sum())
    if not np.isfinite(values).all():
        return {"mean": None, "std": None, "bits_per_dimension": None, "count": len(values), "impossible": impossible}
    mean = float(values.mean())
    return {
        "mean": mean,
        "std": float(values.std()),
        "bits_per_dimension": -mean / (dimensions * math.log(2)),
        "count": len(values),
        "impossible": 0,
    }


def _flat(values: np.ndarray, name: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(values):
        raise ValueError(f"{name} must hold at least one log-density")
    if np.isnan(values).any():
        raise ValueError(f"{name} holds NaN, which cannot be ordered; check the density that produced it")
    return values
