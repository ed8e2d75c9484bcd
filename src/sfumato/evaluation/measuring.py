"""What all measurements of one evaluation share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.evaluation.metrics import metric_named
from sfumato.evaluation.results import ClassAccuracy, FeatureIdentity, ImageSet, Measurement, mean_and_std
from sfumato.release.card import Guarantee


@dataclass(frozen=True)
class Measuring:
    """Makes the measurements of an evaluation: protocol, data, classes and guarantee are repeated with each."""

    protocol: str
    data: str
    classes: tuple[str, ...]
    guarantee: Guarantee | None

    def measurement(
        self,
        metric: str,
        values: Sequence[float],
        *,
        row: str,
        candidate: ImageSet,
        reference: ImageSet,
        seeds: Sequence[int],
        std_over: str,
        std: float | None = None,
        classifier: str | None = None,
        features: FeatureIdentity | None = None,
        settings: Mapping[str, Any] | None = None,
        per_class: tuple[ClassAccuracy, ...] | None = None,
    ) -> Measurement:
        """Mean and standard deviation of ``values``; ``std`` replaces the deviation where the metric has its own."""
        mean, deviation = mean_and_std(values)
        present = [one for one in per_class or () if one.mean is not None]
        return Measurement(
            row=row,
            metric=metric_named(metric).name,
            classifier=classifier,
            mean=mean,
            std=deviation if std is None else std,
            std_over=std_over,
            values=tuple(values),
            per_class=per_class,
            worst_class=min(present, key=lambda one: one.mean or 0.0) if present else None,
            protocol=self.protocol,
            data=self.data,
            candidate=candidate,
            reference=reference,
            features=features,
            seeds=tuple(seeds),
            settings=dict(settings or {}),
            guarantee=self.guarantee,
        )
