"""What synthetic images will be good for, predicted before any look at the data.

The signal-to-noise ratio of a plan is the number of units in a class times the μ of the Gaussian mechanism that spends
the same (ε, δ), divided by √(values in an image / 784). Composed and subsampled Gaussian sums behave like one Gaussian
mechanism (Dong, Roth and Su, 2022), so that this is the signal of a class over its noise, whatever the steps are. It
follows from ε, δ, image size, number of classes and the declared number of units alone.

From the ratio to accuracy: ``expected_use.toml`` holds measured accuracies of each method on MNIST, most of them with
its default settings, and not all by one protocol (docs/results/expected-use.md). The share of the accuracy of real data
is interpolated between them, on the logarithm of the ratio.
"""

from __future__ import annotations

import bisect
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.privacy.budget import Unit

HOPELESS_BELOW, GOOD_FROM = 0.4, 0.8
_REFERENCE = 784  # values in an image of 28×28 grey pixels
_FALL_PER_DECADE = (
    0.5  # below the smallest measured ratio; about that of the methods that were measured over two decades
)


class Use(StrEnum):
    """What to expect from a classifier that is trained on the synthetic images."""

    HOPELESS = "hopeless"
    ROUGH = "rough"
    GOOD = "good"

    @classmethod
    def of(cls, share: float) -> Use:
        """The word for a share of the accuracy of real data, both counted from chance."""
        return cls.HOPELESS if share < HOPELESS_BELOW else cls.ROUGH if share < GOOD_FROM else cls.GOOD


@dataclass(frozen=True)
class PublicFacts:
    """What may be known about a collection without looking at it.

    Attributes:
        declared_size: The declared number of units: of images, or of persons.
        size: Height and width in pixels.
        channels: 1 for grey, 3 for colour.
        classes: The number of classes.
        epsilon: The budget's ε.
        delta: The budget's δ.
        unit: What is protected, an image or a person.
    """

    declared_size: int
    size: int
    classes: int
    epsilon: float
    delta: float = 1e-5
    channels: int = 1
    unit: Unit = "image"

    def __post_init__(self) -> None:
        if min(self.declared_size, self.size, self.classes, self.channels) < 1:
            raise ValueError("declared_size, size, classes and channels must be at least 1")
        if not (math.isfinite(self.epsilon) and self.epsilon > 0 and 0 < self.delta < 1):
            raise ValueError("epsilon must be a positive number, and delta between 0 and 1")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    @property
    def values(self) -> int:
        return math.prod(self.shape)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The sensitivity over noise of the Gaussian mechanism that is exactly (ε, δ)-DP (Balle and Wang, 2018).

    >>> round(gaussian_mu(1.0, 1e-5), 3)
    0.268
    """

    def spent(mu: float) -> float:
        tail = 0.5 * math.erfc((epsilon / mu + mu / 2) / math.sqrt(2))
        return 0.5 * math.erfc((epsilon / mu - mu / 2) / math.sqrt(2)) - math.exp(min(700.0, epsilon)) * tail

    low, high = 1e-6, 100.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) <= delta else (low, middle)
    return low


def signal_to_noise(facts: PublicFacts) -> float:
    """The units of a class × μ, for images of 28×28 grey pixels; larger images leave less for each value."""
    per_class = facts.declared_size / facts.classes
    return per_class * gaussian_mu(facts.epsilon, facts.delta) / math.sqrt(facts.values / _REFERENCE)


@dataclass(frozen=True)
class Point:
    """A measured accuracy: the ratio, and the share of the accuracy of real data, both counted from chance."""

    ratio: float
    share: float


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("expected_use.toml").read_text(encoding="utf-8"))


def table_rows() -> list[dict[str, Any]]:
    """The measured rows, with the file of ``docs/results`` that each is from."""
    return [dict(row) for row in _table()["row"]]


def table_facts(row: Mapping[str, Any]) -> PublicFacts:
    """The public facts of a row of the table."""
    data = _table()["data"][row["data"]]
    return PublicFacts(
        declared_size=row["images"],
        size=data["size"],
        channels=data["channels"],
        classes=data["classes"],
        epsilon=row["epsilon"],
        delta=row["delta"],
    )


def share_of_real(accuracy: float, data: str) -> float:
    """The share of the accuracy of real data that an accuracy in per cent is, both counted from chance."""
    found = _table()["data"][data]
    return (accuracy - found["chance"]) / (found["real"] - found["chance"])


@cache
def points_of(method: str) -> tuple[Point, ...]:
    """The measured points of a method by rising ratio; a share that falls with a rising ratio is averaged away."""
    rows = [row for row in _table()["row"] if row["method"] == method]
    found = [Point(signal_to_noise(table_facts(row)), share_of_real(row["accuracy"], row["data"])) for row in rows]
    return _monotone(sorted(found, key=lambda point: point.ratio))


def _monotone(points: list[Point]) -> tuple[Point, ...]:
    """Isotonic regression by pooling adjacent violators."""
    pools: list[list[Point]] = []
    for point in points:
        pools.append([point])
        while len(pools) > 1 and _mean_share(pools[-2]) > _mean_share(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    return tuple(Point(point.ratio, _mean_share(pool)) for pool in pools for point in pool)


def _mean_share(pool: list[Point]) -> float:
    return sum(point.share for point in pool) / len(pool)


def expected_share(method: str, ratio: float) -> float | None:
    """The expected share of the accuracy of real data, from 0 to 1; None for a method that was never measured."""
    points = points_of(method)
    if not points:
        return None
    if ratio <= points[0].ratio:
        share = points[0].share - _FALL_PER_DECADE * math.log10(points[0].ratio / ratio)
    elif ratio >= points[-1].ratio:
        share = points[-1].share
    else:
        place = bisect.bisect_right([point.ratio for point in points], ratio)
        below, above = points[place - 1], points[place]
        weight = math.log(ratio / below.ratio) / math.log(above.ratio / below.ratio)
        share = below.share + weight * (above.share - below.share)
    return min(1.0, max(0.0, share))


def units_needed(method: str, facts: PublicFacts, share: float) -> int | None:
    """The least number of units, to two digits, whose expected share is ``share``; None if no number suffices."""
    each = signal_to_noise(facts) / facts.declared_size
    points = points_of(method)
    if not points or points[-1].share < share:
        return None
    low, high = math.log(1.0), math.log(1e10)
    for _ in range(60):
        middle = (low + high) / 2
        reached = expected_share(method, each * math.exp(middle)) or 0.0
        low, high = (low, middle) if reached >= share else (middle, high)
    digits = 10.0 ** max(0, math.floor(high / math.log(10)) - 1)
    return int(math.ceil(math.exp(high) / digits) * digits)
