"""Noisy class counts as divisors of noisy sums."""

from __future__ import annotations

from torch import Tensor

from sfumato.privacy import Counts


def smallest_count(total: float, classes: int, *, least: float = 1.0) -> float:
    """The count below which a noisy class count is not told apart from noise: a hundredth of an even share."""
    return max(least, total / (100 * classes))


def divisors(counts: Counts) -> Tensor:
    """Noisy class counts, ``[classes]``, bounded from below so that a small count does not amplify the noise."""
    return counts.values.clamp(min=smallest_count(counts.total, len(counts.values)))
