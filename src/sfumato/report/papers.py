"""A paper's entry as text and as a page: for each number the paper's, ours, the ε claimed and the ε that hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from sfumato.experiments.entries import REPETITIONS, Entry, Figure, Paper, Value
from sfumato.experiments.layout import OWN_DISTANCE, Line
from sfumato.experiments.reproduction import Compared, compared, entry_name
from sfumato.experiments.results import Measured, ResultSet
from sfumato.experiments.training import release_for
from sfumato.report.chart import Point, Series, curve, figure
from sfumato.report.pages import not_private_page, sample_rows

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


HEADINGS = ("data", "setting", "measure", "paper", "ours", "paper's ε", "… holds at", "our ε")
_TOLERANCE = {"FID": 10.0, "IS": 0.1}
_SHARE_TOLERANCE, _POINTS = 0.03, 2.0


def lines(paper: Paper, entry: Entry, result: ResultSet) -> Iterator[tuple[str, ...]]:
    """One line for each number, in the order of ``HEADINGS``."""
    for row in compared(paper, entry, result.rows):
        person = row.ours is not None and row.ours.unit == "person"
        for name in row.metrics(entry) or ["–"]:
            measured = None if row.ours is None else row.ours.values.get(name)
            ours = number(measured) if measured is not None else _absent(row)
            yield (
                *(row.title, row.setting.name + ", per person" * person, name, number(row.printed.get(name)), ours),
                *(row.claimed, row.holds, row.spent),
            )


def blocks(found: Iterable[tuple[str, ...]]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Lines by dataset and claimed ε: a heading that names both, and lines of the other six columns.

    Real data has no ε and stands with what follows it, or else with what it follows.
    """
    blocks: list[tuple[str, str, list[tuple[str, ...]]]] = []
    for line in found:
        data, claimed = line[0], line[5]
        if blocks and blocks[-1][0] == data and "–" in (blocks[-1][1], claimed):
            blocks[-1] = (data, claimed if blocks[-1][1] == "–" else blocks[-1][1], blocks[-1][2])
        elif not blocks or blocks[-1][:2] != (data, claimed):
            blocks.append((data, claimed, []))
        blocks[-1][2].append((*line[1:5], *line[6:]))
    return [(f"{data}, the paper's ε {claimed}", own) for data, claimed, own in blocks]


def number(value: Measured | Value | None) -> str:
    """Four digits after the point below 0.1, three for shares, two for scores, one for percents and distances."""
    if value is None:
        return "–"
    size = abs(value.mean)
    digits = 4 if 0 < size < 0.1 else 3 if size <= 1 else 2 if size < 2 else 1
    return f"{value.mean:.{digits}f}" + ("" if value.std is None else f" ± {value.std:.{digits}f}")


def _absent(row: Compared) -> str:
    if row.setting.missing:
        return f"not run: {row.setting.missing}"
    return "not measured" if row.setting.method or row.setting.baseline else "not ours"


def caption(entry: Entry, result: ResultSet) -> list[str]:
    """How many records, steps, images and trainings the numbers are of, and which dataset replaced which."""
    trained = [row for row in result.rows if row.method is not None]
    found = []
    if not trained:
        found.append("Computed: nothing is trained, and the scale changes nothing.")
    else:
        counts = sorted({row.trainings for row in trained})
        several = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        trainings = f"{several} training{'s' * (counts[-1] != 1)} of each"
        size = trained[0].images
        images = "" if size is None else f", {size:,} synthetic images"
        if result.scale == "small":
            known = [row.data.records for row in trained if row.data.records is not None]
            records = f"at most {max(known):,} records" if known else "a part of the records"
            found.append(
                f"SMALL SCALE: {records}{images}, {trainings}, {_steps(result)}. "
                "It shows that the entry runs and reproduces nothing."
            )
        else:
            found.append(f"{trainings}{images}; {_steps(result)}.")
    found += sorted({f"{row.data.remark}." for row in trained if row.data.remark})
    found += [f"FAILED: {name}: {reason}" for name, reason in result.failed.items()]
    return found


def agreement(paper: Paper, entry: Entry, result: ResultSet) -> str:
    """How many of the paper's numbers ours reach: equal means within two deviations, or a stated tolerance.

    A number that stands beside several settings or units of ours is counted once, with the first of them.
    """
    found = {"better": 0, "equal": 0, "worse": 0}
    counted = set()
    for row in compared(paper, entry, result.rows):
        if row.ours is None or not row.trained or row.ours.superseded:
            continue
        for name, printed in row.printed.items():
            measured = row.ours.values.get(name)
            if printed is None or measured is None or (row.case, name, printed) in counted:
                continue
            counted.add((row.case, name, printed))
            tolerance = _TOLERANCE.get(name, _SHARE_TOLERANCE if printed.mean <= 1 else _POINTS)
            ahead = (measured.mean - printed.mean) * (-1 if name == "FID" else 1)
            equal = abs(ahead) <= max(tolerance, 2 * (measured.std or 0.0))
            found["equal" if equal else "better" if ahead > 0 else "worse"] += 1
    if not sum(found.values()):
        return ""
    counts = ", ".join(f"{count} {word}" for word, count in found.items())
    return f"Against the paper's {sum(found.values())} numbers, at our ε: {counts}."


def _steps(result: ResultSet) -> str:
    """The steps of each method; counts that a form does not use are left out."""
    found: dict[str, set[str]] = {}
    for row in result.rows:
        counts = {key: row.parameters[key] for key in REPETITIONS if key in row.parameters}
        if row.method is None or not counts:
            continue
        order: tuple[str, ...] = ("published_iterations", "iterations") if row.spent is None else ()
        # With a single step, what takes the time is learning from its answer.
        order += ("iterations", "steps") if counts.get("steps") == 1 else ("steps", "iterations")
        key = next(key for key in (*order, *counts) if key in counts)
        found.setdefault(row.method, set()).add(f"{counts[key]:,} {key.replace('_', ' ')}")
    return "; ".join(f"{method} {' or '.join(sorted(texts))}" for method, texts in found.items())


# The page of one entry


def entry_page(paper: Paper, entry: Entry, result: ResultSet, rows: Sequence[Line]) -> str:
    """Every number, the figure, samples of every setting. NOT PRIVATE."""
    title = entry_name(paper, entry)
    body = [f"<h1>{escape(title)}</h1><p>{escape(entry.title)}.</p>"]
    body += [f"<p>{escape(text)}</p>" for text in caption(entry, result)]
    chart = None if entry.figure is None else draw(compared(paper, entry, result.rows), entry.figure)
    if chart is not None:
        body.append(figure(entry.title, chart))
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines(paper, entry, result))
    table = f'<table class="wide"><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in cells)}</table>'
    body.append(f'<h2>Every number</h2><div class="scroll">{table}</div>')
    pictures = "".join(samples_of(row) for row in rows)
    if pictures:
        body.append(f'<h2>Samples</h2><div class="gallery">{pictures}</div>')
    return not_private_page(title, "".join(body))


def samples_of(row: Line) -> str:
    """A row for each class, ten images of the first training."""
    if row.evaluated is None or not row.evaluated.trainings:
        return ""
    folder = row.evaluated.folders[0]
    if not (folder / "release").exists():
        return ""
    name = f"{row.setting}, {row.evaluated.conditions.out.name}, ε {row.epsilon:g}"
    picture = sample_rows(release_for(folder, row.evaluated.variant), each=10)
    return (
        f'<figure><figcaption>{escape(name)}</figcaption><img src="{picture}" alt="Samples of {escape(name)}"></figure>'
    )
