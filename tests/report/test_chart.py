"""The curve's vertical axis: around all means, spread out towards 100, and never beyond it."""

from __future__ import annotations

import re

from sfumato.report.chart import Point, Series, curve


def levels(chart: str) -> dict[float, float]:
    """The height of each grid line, counted from the top."""
    return {
        float(level): float(y) - 4  # a level's number stands four below its line
        for y, level in re.findall(r'y="([\d.]+)" text-anchor="end">(-?[\d.]+)</text>', chart)
    }


def test_an_axis_of_shares_ends_where_shares_end() -> None:
    found = levels(curve([Series("diverged", (Point(1.0, 48.0, 54.0), Point(10.0, 87.0, 0.1)))], x="ε", y="%"))
    assert min(found) == 30 and max(found) == 90


def test_good_series_are_told_apart_and_the_axis_begins_below_the_worst() -> None:
    good = [Series("a", (Point(1.0, 90.0),)), Series("b", (Point(1.0, 95.0),)), Series("c", (Point(1.0, 81.0),))]
    found = levels(curve(good, x="ε", y="%"))
    assert min(found) == 80 and found[90.0] - found[95.0] > 60
    with_bad = levels(curve([*good, Series("d", (Point(1.0, 10.0),))], x="ε", y="%"))
    assert min(with_bad) == 0 and with_bad[90.0] - with_bad[95.0] > 30


def test_error_bars_end_at_the_axis() -> None:
    chart = curve([Series("a", (Point(1.0, 72.0, 60.0),))], x="", y="")
    (bar,) = re.findall(r"h8m-4 0V([\d.]+)m-4 0h8", chart)
    assert float(bar) == levels(chart)[70.0]


def test_values_at_the_ends_have_an_axis() -> None:
    for value in (0.0, 99.95, 100.0):
        assert len(levels(curve([Series("a", (Point(1.0, value),))], x="", y=""))) >= 2
