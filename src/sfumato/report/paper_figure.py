"""A figure of a paper drawn as a curve over ε, over the released model's size or over a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sfumato.experiments.gather import OWN_DISTANCE
from sfumato.experiments.papers.entries import Figure
from sfumato.experiments.papers.result import Compared
from sfumato.report.chart import Point, Series, curve

# A page brings its colours; an image file on its own needs them too.
_STYLE = (
    "<style>:root{--ink:#1d1b18;--faint:#8a857c;--line:#e4dfd5}text{font:12px system-ui,sans-serif;fill:var(--ink)}"
    ".axis,.faint{fill:var(--faint)}</style>"
)


def draw(rows: Sequence[Compared], figure: Figure) -> str | None:
    """An SVG for a page, with the paper's points where it prints numbers; ``None`` where nothing was measured."""
    found: dict[str, list[Point]] = {}
    metric = figure.y
    for row in rows:
        x = _x(row, figure.x)
        ours = None if row.ours is None else row.ours.values.get(figure.y)
        if row.ours is not None and ours is None:
            ours = row.ours.values.get(OWN_DISTANCE)
            metric = OWN_DISTANCE if ours else metric
        printed = row.printed.get(figure.y)
        if x is None:
            continue
        name = _series(row, figure)
        if ours is not None:
            found.setdefault(name, []).append(Point(x, ours.mean, ours.std))
        if printed is not None:
            found.setdefault(f"{name}, paper", []).append(Point(x, printed.mean, printed.std))
    if not found:
        return None
    series = [Series(name, tuple(sorted(points, key=lambda point: point.x))) for name, points in found.items()]
    return curve(series, x=figure.label or figure.x.replace("epsilon", "ε"), y=metric)


def standalone(svg: str) -> str:
    """The same as a file of its own."""
    head, _, rest = svg.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg" style="background:#fff">{_STYLE}{rest}\n'


def _x(row: Compared, name: str) -> float | None:
    if name == "epsilon":
        return None if row.claimed in ("–", "∞") else row.case.epsilon
    if row.ours is None:
        return None
    found: Any = row.ours.megabytes if name == "megabytes" else row.ours.parameters.get(name)
    return None if found is None else float(found)


def _series(row: Compared, figure: Figure) -> str:
    """Over ε a line is a setting; over a parameter it is a dataset at an ε."""
    return f"{row.setting.name}, {row.title}" if figure.x == "epsilon" else f"{row.title}, ε {row.claimed}"
