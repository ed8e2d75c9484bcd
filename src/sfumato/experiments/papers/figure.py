"""A figure entry drawn as a curve over ε, over the released model's size or over a parameter."""

from __future__ import annotations

from typing import Any

from sfumato.experiments.papers.result import OWN_DISTANCE
from sfumato.experiments.papers.specification import Figure
from sfumato.report.chart import Point, Series, curve

# A page brings its colours; a picture on its own needs them too.
_STYLE = (
    "<style>:root{--ink:#1d1b18;--faint:#8a857c;--line:#e4dfd5}text{font:12px system-ui,sans-serif;fill:var(--ink)}"
    ".axis,.faint{fill:var(--faint)}</style>"
)


def draw(result: dict[str, Any], figure: Figure) -> str | None:
    """An SVG for a page, with the paper's points where it prints numbers; ``None`` where nothing was measured."""
    lines: dict[str, list[Point]] = {}
    measure = figure.y
    for row in result["rows"]:
        x = _x(row, figure.x)
        value = row["values"].get(figure.y)
        if row["ran"] and (value is None or value["mean"] is None):
            value = row["values"].get(OWN_DISTANCE)
            measure = OWN_DISTANCE if value else measure
        if x is None or value is None:
            continue
        name = _series(row, figure)
        if value["mean"] is not None:
            lines.setdefault(name, []).append(Point(x, value["mean"], value["std"]))
        if value["paper"] is not None:
            lines.setdefault(f"{name}, paper", []).append(Point(x, value["paper"], value["paper_std"]))
    if not lines:
        return None
    series = [Series(name, tuple(sorted(points, key=lambda point: point.x))) for name, points in lines.items()]
    return curve(series, x=figure.label or figure.x.replace("epsilon", "ε"), y=measure)


def standalone(svg: str) -> str:
    """The same as a file of its own."""
    head, _, rest = svg.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg" style="background:#fff">{_STYLE}{rest}\n'


def _x(row: dict[str, Any], name: str) -> float | None:
    if name == "megabytes":
        return row["megabytes"]
    if name == "epsilon":
        return None if row["claimed"] in ("–", "∞") else float(row["claimed"])
    found = row["parameters"].get(name)
    return None if found is None else float(found)


def _series(row: dict[str, Any], figure: Figure) -> str:
    """Over ε a line is a setting; over a parameter it is a collection at an ε."""
    return f"{row['setting']}, {row['data']}" if figure.x == "epsilon" else f"{row['data']}, ε {row['claimed']}"
