"""The page of a comparison: one curve, one table, samples of every method at every ε. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from sfumato.evaluation.metrics import metric_named
from sfumato.evaluation.results import REAL, ImageCounts, LeftOut, Measurement
from sfumato.experiments.compare import ComparedMethod, ComparisonResult
from sfumato.report.chart import Point, Series, curve
from sfumato.report.tables import Table, left_out_text, mebibytes_text, seconds_text
from sfumato.report.watermark import render_not_private

SHOWN = ("accuracy", "fid", "kid", "coverage")


def comparison_page(result: ComparisonResult, pictures: Sequence[str]) -> str:
    """The page of a comparison; ``pictures`` are ``data:`` addresses, one for each entry."""
    entries = result.entries
    count = len({entry.name for entry in entries})
    versions = ", ".join(f"{name} {version}" for name, version in (result.about["versions"] or {}).items())
    return render_not_private(
        "comparison.html.jinja",
        title=f"comparison on {result.facts['data']}",
        result=result,
        methods="One certified method" if count == 1 else f"{count} certified methods",
        chart=_chart(result),
        chart_note=_chart_note(entries),
        quality=_quality(result) if entries else None,
        quality_note=_quality_note(result) if entries else "",
        cost=_cost(entries),
        cost_note=_cost_note(result) if entries else "",
        samples=[(_name(entry), picture) for entry, picture in zip(entries, pictures, strict=True)],
        settings=list({entry.name: (entry.name, _settings(entry)) for entry in entries}.values()),
        versions=versions,
    )


def _name(entry: ComparedMethod) -> str:
    return f"{entry.name}, ε {entry.epsilon:g}"


def _chart(result: ComparisonResult) -> Markup | None:
    lines: dict[str, list[Point]] = {}
    classifier = ""
    for entry in result.entries:
        found = [metric for metric in entry.metrics if metric.metric == "accuracy"]
        if not found:
            return None
        main, classifier = found[-1], found[-1].classifier or ""
        deviation = None if main.std is None else 100 * main.std
        lines.setdefault(entry.name, []).append(Point(entry.epsilon, 100 * main.mean, deviation))
    if not lines:
        return None
    real = [one for one in _baselines(result) if one.metric == "accuracy" and one.row == REAL]
    return curve(
        [Series(name, tuple(sorted(points, key=lambda point: point.x))) for name, points in lines.items()],
        x="ε (left: more private)",
        y=f"{classifier} accuracy on real test images, %",
        references={REAL: 100 * real[-1].mean} if real else {},
    )


def _chart_note(entries: Sequence[ComparedMethod]) -> str:
    runs = max((len(entry.runs) for entry in entries), default=0)
    several = f"Error bars: one standard deviation over {runs} trainings."
    bars = several if runs > 1 else "One training each: no error bars."
    return f"{bars} The axis spreads out high accuracies, so that good methods can be told apart."


def _baselines(result: ComparisonResult) -> list[Measurement]:
    return [Measurement.from_json(entry) for entry in result.baselines]


def _quality(result: ComparisonResult) -> Table:
    entries = result.entries
    headings = [metric.heading for metric in entries[0].metrics if metric.metric in SHOWN]
    rows = []
    for entry in entries:
        found = {metric.heading: metric for metric in entry.metrics}
        worst = entry.worst_class
        cells = [
            metric_named(metric.metric).text(metric.mean, metric.std)
            for metric in (found[heading] for heading in headings)
        ]
        cells.append("–" if worst is None else f"{100 * worst.mean:.1f} ({worst.name})")
        rows.append((_name(entry), tuple(cells)))
    by_row: dict[str, dict[str, str]] = {}
    for one in _baselines(result):
        by_row.setdefault(one.row, {})[one.heading] = one.text
    for row, cells_of in by_row.items():
        rows.append((row, (*(cells_of.get(heading, "–") for heading in headings), "–")))
    return Table((*headings, "worst class, %"), tuple(rows))


def _quality_note(result: ComparisonResult) -> str:
    note, counts = "Mean ± standard deviation over trainings.", result.about["counts"]
    if counts is not None:
        limit = ImageCounts(**counts).feature_images_at_most
        note += (
            f" {result.facts['images']} synthetic images of each run; distances from "
            f"{'all' if limit is None else f'at most {limit}'} of each set."
        )
    return note + left_out_text([LeftOut(**one) for one in result.about["left_out"]])


def _cost(entries: Sequence[ComparedMethod]) -> Table:
    rows = [(_name(entry), (f"{entry.spent:g}", _time(entry), _memory(entry))) for entry in entries]
    return Table(("ε spent", "time", "peak memory"), tuple(rows))


def _cost_note(result: ComparisonResult) -> str:
    threads = result.entries[0].threads
    note = f"Of one training with {threads} thread{'s' * (threads != 1)} ({result.device})."
    resumed = sum(entry.resumed for entry in result.entries)
    if resumed:
        note += (
            f" {resumed} training{'s were' if resumed > 1 else ' was'} resumed after an interruption: the time counts "
            "from there, and steps that were charged and then lost are missing."
        )
    return note


def _time(entry: ComparedMethod) -> str:
    seconds = entry.seconds
    text = seconds_text(seconds.mean)
    return text if seconds.std is None else f"{text} ± {seconds.std:.1f} s"


def _memory(entry: ComparedMethod) -> str:
    text, device = mebibytes_text(entry.peak_memory.mean), entry.peak_device_memory
    return text if device is None else f"{text} + {mebibytes_text(device)} on the GPU"


def _settings(entry: ComparedMethod) -> str:
    parameters = ", ".join(f"{key} = {value}" for key, value in entry.parameters.items())
    return f"{entry.paper}. {parameters}"
