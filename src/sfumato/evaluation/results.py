"""One measured number with everything that is needed to read it, ready for JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.evaluation.classifiers import Accuracy
from sfumato.evaluation.features import FeatureNetwork
from sfumato.release.card import Guarantee

NOTICE = "NOT PRIVATE: computed from real data; for internal use, not covered by any (ε, δ)"


@dataclass(frozen=True)
class Side:
    """A set of images that took part: what it is, which split of the real data (if any), and how many images."""

    data: str
    split: str | None
    count: int

    def as_json(self) -> dict[str, Any]:
        return {"data": self.data, "split": self.split, "count": self.count}


@dataclass(frozen=True)
class Context:
    """What all measurements of one run share."""

    protocol: str
    data: str
    guarantee: Guarantee | None


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; of a single value there is none."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def measurement(
    context: Context,
    metric: str,
    values: Sequence[float],
    *,
    row: str,
    candidate: Side,
    reference: Side,
    seeds: Sequence[int],
    std_over: str,
    std: float | None = None,
    classifier: str | None = None,
    features: FeatureNetwork | None = None,
    settings: Mapping[str, Any] | None = None,
    per_class: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Every key is always there and always in this order; what does not apply is ``None``.

    ``candidate`` is judged: the set a classifier learns from, or whose features are compared. ``reference`` judges: the
    test set, or the features compared with.
    """
    mean, deviation = spread(values)
    present = [entry for entry in per_class or () if entry["mean"] is not None]
    return {
        "row": row,
        "metric": metric,
        "classifier": classifier,
        "mean": mean,
        "std": deviation if std is None else std,
        "std_over": std_over,
        "values": list(values),
        "per_class": None if per_class is None else [dict(entry) for entry in per_class],
        "worst_class": dict(min(present, key=lambda entry: entry["mean"])) if present else None,
        "protocol": context.protocol,
        "data": context.data,
        "candidate": candidate.as_json(),
        "reference": reference.as_json(),
        "features": None if features is None else features.identity(),
        "seeds": list(seeds),
        "settings": dict(settings or {}),
        "guarantee": None if context.guarantee is None else context.guarantee.to_json(),
        "private": False,
    }


def class_entries(accuracies: Sequence[Accuracy], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Mean and deviation of each class's accuracy over trainings; ``None`` for a class without test images."""
    entries = []
    for place, name in enumerate(classes):
        values = [value for accuracy in accuracies if (value := accuracy.per_class[place]) is not None]
        mean, deviation = spread(values) if values else (None, None)
        entries.append({"class": name, "mean": mean, "std": deviation})
    return entries
