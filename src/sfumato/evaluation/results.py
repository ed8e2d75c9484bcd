"""Typed results of an evaluation: every number with all that is needed to read it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sfumato.evaluation.classifiers import Accuracy
from sfumato.release.card import Guarantee
from sfumato.release.plain_numbers import entries


@dataclass(frozen=True)
class Metric:
    """How the values of a metric are read and printed.

    Attributes:
        name: The name in result files.
        title: The name on pages and in tables, without its unit.
        unit: The unit that it is printed in; empty for a plain number.
        scale: Stored values are multiplied by this to be printed in that unit.
        digits: Decimal places.
        higher_is_better: Whether a larger value is better.
    """

    name: str
    title: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 1
    higher_is_better: bool = True

    @property
    def heading(self) -> str:
        """Title and unit with an arrow towards better values."""
        unit = f" {self.unit}" if self.unit.startswith("×") else f", {self.unit}" if self.unit else ""
        return f"{self.title}{unit} {'↑' if self.higher_is_better else '↓'}"

    def text(self, mean: float, std: float | None = None) -> str:
        """A mean, or a mean ± its standard deviation, in the printed unit."""
        text = f"{self.scale * mean:.{self.digits}f}"
        return text if std is None else f"{text} ± {self.scale * std:.{self.digits}f}"


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", "%", 100.0),
        Metric("label_agreement", "label agreement", "%", 100.0),
        Metric("fid", "FID", higher_is_better=False),
        Metric("kid", "KID", "× 1000", 1000.0, higher_is_better=False),
        Metric("frechet_distance", "Fréchet distance", higher_is_better=False),
        Metric("precision", "precision", digits=3),
        Metric("recall", "recall", digits=3),
        Metric("density", "density", digits=3),
        Metric("coverage", "coverage", digits=3),
    )
}


def metric_named(name: str) -> Metric:
    """The metric of this name; the error lists them all."""
    if name not in METRICS:
        raise LookupError(f"there is no metric {name!r}; there are {', '.join(METRICS)}")
    return METRICS[name]


NOTICE = "NOT PRIVATE: computed from real data; for internal use, not covered by any (ε, δ)"

SYNTHETIC = "synthetic"
REAL = "real training data"
HALVES = "real half against real half"
NOISE = "uniform noise"


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; a single value has no deviation."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class ImageSet:
    """A set of images that took part: what it is, which split of the real data, if any, and how many images."""

    data: str
    split: str | None
    count: int


@dataclass(frozen=True)
class FeatureIdentity:
    """The feature network of a measurement. Values of two networks compare only if their hashes are equal."""

    name: str
    hash: str
    dimension: int
    resize: str
    trained_on: str

    @property
    def published(self) -> bool:
        """Whether it is the Inception network on which papers compute FID and KID."""
        return self.name.startswith("inception")


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy on the test images of one class; ``mean`` is ``None`` if the class has no test images."""

    name: str
    mean: float | None
    std: float | None

    def to_json(self) -> dict[str, Any]:
        """With the class's name under ``class``."""
        return {"class": self.name, "mean": self.mean, "std": self.std}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["class"], data["mean"], data["std"])


def class_accuracies(accuracies: Sequence[Accuracy], classes: Sequence[str]) -> tuple[ClassAccuracy, ...]:
    """Mean and standard deviation of each class's accuracy over several trainings."""
    found = []
    for place, name in enumerate(classes):
        values = [value for accuracy in accuracies if (value := accuracy.per_class[place]) is not None]
        found.append(ClassAccuracy(name, *mean_and_std(values)) if values else ClassAccuracy(name, None, None))
    return tuple(found)


@dataclass(frozen=True)
class Measurement:
    """One metric of one row of an evaluation. The fields are the keys of the JSON form, in this order.

    Attributes:
        row: What is measured: the synthetic images, or a baseline.
        candidate: The set that a classifier was trained on, or whose features are compared.
        reference: The set it is tested on, or compared with.
        std_over: What the standard deviation is taken over.
        private: Always false: the value was computed from real data.
    """

    row: str
    metric: str
    classifier: str | None
    mean: float
    std: float | None
    std_over: str
    values: tuple[float, ...]
    per_class: tuple[ClassAccuracy, ...] | None
    worst_class: ClassAccuracy | None
    protocol: str
    data: str
    candidate: ImageSet
    reference: ImageSet
    features: FeatureIdentity | None
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]
    guarantee: Guarantee | None
    private: bool = False

    @property
    def heading(self) -> str:
        """The metric with its classifier or its features, its unit, and an arrow towards better."""
        heading = metric_named(self.metric).heading
        if self.classifier is not None:
            return f"{self.classifier} {heading}"
        return heading if self.features is None or self.features.published else f"class-feature {heading}"

    @property
    def text(self) -> str:
        """Mean ± standard deviation as it is printed."""
        return metric_named(self.metric).text(self.mean, self.std)

    def to_json(self) -> dict[str, Any]:
        """Plain data; every key is always there."""
        return entries(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        per_class, worst, features = data["per_class"], data["worst_class"], data["features"]
        changed: dict[str, Any] = {
            "values": tuple(data["values"]),
            "per_class": None if per_class is None else tuple(ClassAccuracy.from_json(one) for one in per_class),
            "worst_class": None if worst is None else ClassAccuracy.from_json(worst),
            "candidate": ImageSet(**data["candidate"]),
            "reference": ImageSet(**data["reference"]),
            "features": None if features is None else FeatureIdentity(**features),
            "seeds": tuple(data["seeds"]),
            "guarantee": None if data["guarantee"] is None else Guarantee.from_json(data["guarantee"]),
        }
        return cls(**{**data, **changed})


@dataclass(frozen=True)
class ProtocolSummary:
    """What a result says about its protocol."""

    name: str
    papers: str
    synthetic_count_in_the_papers: int
    fid_against: str
    classifiers: tuple[str, ...]
    selection: str
    input: str
    optimiser: str


@dataclass(frozen=True)
class ImageCounts:
    """How many images of each kind took part; at most so many of each went through the feature network."""

    synthetic: tuple[int, ...]
    real_train: int
    real_test: int
    feature_images_at_most: int | None


@dataclass(frozen=True)
class LeftOut:
    """A metric that was not measured, and why."""

    metric: str
    reason: str


@dataclass(frozen=True)
class MemorisationSummary:
    """How near synthetic images are to training images, beside fresh real images. INTERNAL.

    About 1 % of a perfect generator's images are nearer to a training image than 99 % of fresh real images; a much
    larger share indicates copies.
    """

    notice: str
    synthetic_count: int
    test_count: int
    exact_copies: int
    share_nearer_than_one_percent_of_test: float
    median_distance: float
    median_distance_of_test: float


@dataclass(frozen=True)
class EvaluationResult:
    """Everything that an evaluation measured. NOT PRIVATE."""

    protocol: ProtocolSummary
    data: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    counts: ImageCounts
    seeds: tuple[int, ...]
    device: str
    versions: Mapping[str, str]
    guarantee: Guarantee | None
    measurements: tuple[Measurement, ...]
    left_out: tuple[LeftOut, ...]
    memorisation: MemorisationSummary | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.row for one in self.measurements))

    def headline(self, row: str = SYNTHETIC) -> Measurement | None:
        """The accuracy that a curve shows: the protocol's last, which is its network or the mean of its networks."""
        found = [one for one in self.measurements if one.metric == "accuracy" and one.row == row]
        return found[-1] if found else None

    def by_class(self, row: str = SYNTHETIC) -> Measurement | None:
        found = [one for one in self.measurements if one.metric == "accuracy" and one.row == row and one.per_class]
        return found[-1] if found else None

    def to_json(self) -> dict[str, Any]:
        """Plain data, the notice first; what only the custodian may see is under ``internal``."""
        content = entries(self)
        memorisation = content.pop("memorisation")
        return {"notice": NOTICE, **content, "internal": {} if memorisation is None else {"memorisation": memorisation}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        found = data["internal"].get("memorisation")
        protocol, counts = data["protocol"], data["counts"]
        return cls(
            protocol=ProtocolSummary(**{**protocol, "classifiers": tuple(protocol["classifiers"])}),
            data=data["data"],
            classes=tuple(data["classes"]),
            shape=tuple(data["shape"]),
            counts=ImageCounts(**{**counts, "synthetic": tuple(counts["synthetic"])}),
            seeds=tuple(data["seeds"]),
            device=data["device"],
            versions=data["versions"],
            guarantee=None if data["guarantee"] is None else Guarantee.from_json(data["guarantee"]),
            measurements=tuple(Measurement.from_json(one) for one in data["measurements"]),
            left_out=tuple(LeftOut(**one) for one in data["left_out"]),
            memorisation=None if found is None else MemorisationSummary(**found),
        )
