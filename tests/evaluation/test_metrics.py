"""Every metric says what it is called, in which unit it is printed, and which direction is better."""

from __future__ import annotations

import pytest

from sfumato.evaluation.results import METRICS, metric_named


def test_headings_and_units() -> None:
    for name, heading, text in [
        ("accuracy", "accuracy, % ↑", "98.2 ± 0.5"),
        ("fid", "FID ↓", "1.0 ± 0.0"),
        ("kid", "KID × 1000 ↓", "982.0 ± 5.0"),
        ("coverage", "coverage ↑", "0.982 ± 0.005"),
    ]:
        assert METRICS[name].heading == heading
        assert METRICS[name].text(0.982, 0.005) == text
        assert METRICS[name].text(0.982) == text.partition(" ±")[0]


def test_distances_are_better_when_smaller() -> None:
    assert {name for name, metric in METRICS.items() if not metric.higher_is_better} == {
        "fid",
        "kid",
        "frechet_distance",
    }


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LookupError, match="accuracy, label_agreement, fid"):
        metric_named("quality")
