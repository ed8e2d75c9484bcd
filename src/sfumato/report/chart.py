"""Charts as inline SVG and plain HTML: no script, readable in print and on a phone, shapes as well as colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from sfumato.evaluation.results import ImageCounts, LeftOut, Measurement, metric_named

COLOURS = ("#2f6b4f", "#8a4b2d", "#3c5a86", "#8c6d1f", "#6b3f73", "#1f7a8c", "#4f4a43", "#b0455b", "#7d8f29")
# Drawn around the origin; readers who see no colours tell the series apart by them.
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.8l4.6 8h-9.2z",
    "M0-5l5 5l-5 5l-5-5z",
    "M0 4.8l4.6-8h-9.2z",
    "M-4.5-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z",
)


def figure(question: str, chart: str, note: str = "") -> Markup:
    """A chart, which is markup, under the question that it answers; ``note`` is plain text."""
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return Markup(f"<figure><figcaption>{escape(question)}</figcaption>{chart}{below}</figure>")


def dots(*, common: int, added: int, label: str) -> Markup:
    """A hundred dots: ``common`` dark, then ``added`` red, the rest empty."""
    fills = ["var(--ink)"] * common + ["var(--bad)"] * added
    fills += ["none"] * (100 - len(fills))
    marks = "".join(
        f'<circle cx="{10 + 16 * (place % 20)}" cy="{10 + 16 * (place // 20)}" r="5.5" fill="{fill}" '
        f'stroke="{"var(--faint)" if fill == "none" else fill}"/>'
        for place, fill in enumerate(fills)
    )
    return Markup(f'<svg class="chart dots" viewBox="0 0 324 84" role="img" aria-label="{escape(label)}">{marks}</svg>')


@dataclass(frozen=True)
class Bar:
    """One line of ``bars``: a share in 0..1, and the share a baseline reaches, if one was measured."""

    name: str
    share: float
    mark: float | None = None
    worst: bool = False


def bars(entries: Sequence[Bar], *, full: float = 1.0) -> Markup:
    """Horizontal bars with their values, up to ``full``; a vertical line marks the baseline."""
    rows = []
    for bar in entries:
        mark = "" if bar.mark is None else f'<i style="left:calc({100 * _unit(bar.mark / full):.1f}% - 1px)"></i>'
        fill = f'<span{" class=worst" if bar.worst else ""} style="width:{100 * _unit(bar.share / full):.1f}%"></span>'
        rows.append(
            f'<tr><th>{escape(bar.name)}</th><td class="track"><div>{fill}{mark}</div></td>'
            f'<td class="value">{100 * bar.share:.1f} %</td></tr>'
        )
    return Markup(f'<table class="bars">{"".join(rows)}</table>')


@dataclass(frozen=True)
class Point:
    """A mean at ``x`` with the deviation over repetitions, if there were any."""

    x: float
    y: float
    deviation: float | None = None


@dataclass(frozen=True)
class Series:
    """The points of one name, joined by a line."""

    name: str
    points: tuple[Point, ...]


# The canvas is narrow so that its text can be read on a phone.
_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT = 400, 40, 12, 10, 210


def curve(
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    references: Mapping[str, float] | None = None,
) -> Markup:
    """Shares in per cent over a logarithmic axis, with error bars of one deviation; ``references`` are dashed levels.

    The vertical axis is logarithmic in what is missing from 100, so that the good series can be told apart, and
    begins below the lowest mean. An error bar ends at the axis.
    """
    references = dict(references or {})
    points = [point for line in series for point in line.points]
    levels = _levels([point.y for point in points] + list(references.values()))
    scale = _Scale(levels, ticks=tuple(sorted({point.x for point in points})))
    parts = [*_axes(scale), *_references(references, scale)]
    for number, line in enumerate(series):
        # Series are offset a little, so that their error bars do not cover each other.
        aside = 5 * (number - (len(series) - 1) / 2)
        placed = [(scale.across(point.x) + aside, point) for point in line.points]
        parts.append(_line(line, number, placed, scale))
    bottom = _TOP + _HEIGHT + 40
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{bottom}" text-anchor="middle">{escape(x)}</text>')
    parts += _legend(series, bottom)
    tall = bottom + 14 + 19 * -(-len(series) // 2)
    heading = f'<text x="0" y="-8">{escape(y)}</text>'
    label = escape(f"{y} over {x}: {', '.join(line.name for line in series)}")
    return Markup(
        f'<svg class="chart" viewBox="0 -20 {_WIDTH} {tall + 20}" role="img" aria-label="{label}">'
        f"{heading}{''.join(parts)}</svg>"
    )


@dataclass(frozen=True)
class _Scale:
    """From values to places on the canvas: logarithmic across, and down in what is missing from 100."""

    levels: tuple[float, ...]
    ticks: tuple[float, ...]

    def across(self, value: float) -> float:
        left, right = math.log(self.ticks[0]), math.log(self.ticks[-1])
        share = 0.5 if left == right else (math.log(value) - left) / (right - left)
        return _LEFT + 30 + (_WIDTH - _LEFT - _RIGHT - 60) * share

    def down(self, value: float) -> float:
        low, high = self.levels[0], self.levels[-1]
        shown = _missing(min(max(value, low), high))
        return _TOP + _HEIGHT * (shown - _missing(high)) / (_missing(low) - _missing(high))


def _axes(scale: _Scale) -> Iterator[str]:
    for level in scale.levels:
        yield (
            f'<path d="M{_LEFT} {scale.down(level):.1f}H{_WIDTH - _RIGHT}" stroke="var(--line)"/>'
            f'<text class="axis" x="{_LEFT - 6}" y="{scale.down(level) + 4:.1f}" text-anchor="end">{level:g}</text>'
        )
    for tick in scale.ticks:
        place = scale.across(tick)
        yield (
            f'<path d="M{place:.1f} {_TOP + _HEIGHT}v5" stroke="var(--faint)"/>'
            f'<text class="axis" x="{place:.1f}" y="{_TOP + _HEIGHT + 19}" text-anchor="middle">{tick:g}</text>'
        )


def _references(references: Mapping[str, float], scale: _Scale) -> Iterator[str]:
    for name, level in references.items():
        place = scale.down(level)
        yield (
            f'<path d="M{_LEFT} {place:.1f}H{_WIDTH - _RIGHT}" stroke="var(--faint)" stroke-dasharray="5 4"/>'
            f'<text class="faint" x="{_WIDTH - _RIGHT}" y="{place - 5:.1f}" text-anchor="end">{escape(name)}</text>'
        )


def _legend(series: Sequence[Series], bottom: int) -> Iterator[str]:
    for number, line in enumerate(series):
        spot = f"translate({_LEFT + 4 + 180 * (number % 2)} {bottom + 22 + 19 * (number // 2)})"
        yield (
            f'<path d="{MARKS[number % len(MARKS)]}" fill="{_colour(number)}" transform="{spot}"/>'
            f'<text transform="{spot}" x="11" y="4">{escape(line.name)}</text>'
        )


def _line(line: Series, number: int, placed: Sequence[tuple[float, Point]], scale: _Scale) -> str:
    colour, down = _colour(number), scale.down
    path = "L".join(f"{across:.1f} {down(point.y):.1f}" for across, point in placed)
    parts = [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>']
    for across, point in placed:
        if point.deviation is not None:
            bottom, top = down(point.y - point.deviation), down(point.y + point.deviation)
            parts.append(
                f'<path d="M{across - 4:.1f} {top:.1f}h8m-4 0V{bottom:.1f}m-4 0h8" fill="none" stroke="{colour}"/>'
            )
        parts.append(
            f'<path d="{MARKS[number % len(MARKS)]}" fill="{colour}" '
            f'transform="translate({across:.1f} {down(point.y):.1f})"/>'
        )
    return "".join(parts)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _unit(share: float) -> float:
    return min(1.0, max(0.0, share))


# What is missing from 100 falls by about the same factor from each level to the next.
_LEVELS = (0, 30, 50, 70, 80, 90, 95, 98, 99, 99.5, 99.9)


def _levels(values: Sequence[float]) -> tuple[float, ...]:
    """Grid lines around the values, at least two."""
    low = max((level for level in _LEVELS if level <= min(values)), default=_LEVELS[0])
    high = min((level for level in _LEVELS if level >= max(values) and level > low), default=_LEVELS[-1])
    return tuple(level for level in _LEVELS if low <= level <= high) if low < high else _LEVELS[-2:]


def _missing(value: float) -> float:
    return math.log(100.0 - value)


@dataclass(frozen=True)
class Table:
    """Named columns, and rows with a name and a cell for each column; ``own`` is the column that is set in bold."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    own: int | None = None


def measurement_table(measurements: Sequence[Measurement]) -> Table:
    """A line for each metric, a column for each row of the evaluation; the first is the synthetic one."""
    columns = tuple(dict.fromkeys(one.row for one in measurements))
    lines: dict[str, dict[str, str]] = {}
    for one in measurements:
        lines.setdefault(one.heading, {})[one.row] = one.text
        worst = one.worst_class
        if one.metric == "accuracy" and worst is not None and worst.mean is not None:
            text = f"{metric_named('accuracy').text(worst.mean)} ({worst.name})"
            lines.setdefault(f"worst class, {one.classifier}", {})[one.row] = text
    rows = tuple((name, tuple(cells.get(column, "–") for column in columns)) for name, cells in lines.items())
    return Table(columns, rows, own=0)


def counts_text(counts: ImageCounts) -> str:
    """How many images took part."""
    limit = counts.feature_images_at_most
    return (
        f"{counts.synthetic[0]} synthetic, {counts.real_train} real training and {counts.real_test} real test images; "
        f"distances from {'all' if limit is None else f'at most {limit}'} of each set."
    )


def left_out_text(left_out: Sequence[LeftOut]) -> str:
    """What was not measured, and why."""
    return "".join(f" Left out: {one.metric}: {one.reason}." for one in left_out)


def mebibytes_text(size: float) -> str:
    """Bytes in MiB."""
    return f"{size / 2**20:.0f} MiB"
