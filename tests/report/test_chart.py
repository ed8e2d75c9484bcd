"""The curve's range: round, around all it shows, and never where no value can lie."""

from __future__ import annotations

import re

from sfumato.report.chart import Point, Series, curve


def levels(chart: str) -> list[float]:
    return [float(found) for found in re.findall(r'text-anchor="end">(-?[\d.]+)</text>', chart)]


def test_an_axis_of_shares_ends_where_shares_end() -> None:
    series = [Series("broken", (Point(1.0, 48.0, 54.0), Point(10.0, 87.0, 0.1)))]
    free, bounded = (curve(series, x="ε", y="%", **{"within": ends} if ends else {}) for ends in (None, (0.0, 100.0)))
    assert min(levels(free)) < 0 and max(levels(free)) > 100
    assert min(levels(bounded)) == 0 and max(levels(bounded)) == 100


def test_error_bars_end_at_the_bounds_and_points_stay() -> None:
    (bar,) = re.findall(
        r"h8m-4 0V([\d.]+)m-4 0h8", curve([Series("a", (Point(1.0, 3.0, 9.0),))], x="", y="", within=(0, 9))
    )
    chart = curve([Series("a", (Point(1.0, 3.0, 9.0),))], x="", y="", within=(0, 9))
    (lowest,) = [
        float(y) for y, level in re.findall(r'y="([\d.]+)" text-anchor="end">(-?[\d.]+)<', chart) if level == "0"
    ]
    assert float(bar) == lowest - 4  # a level's number stands four below its line
    outside = curve([Series("a", (Point(1.0, 120.0, 1.0),))], x="", y="", within=(0.0, 100.0))
    assert max(levels(outside)) >= 120
