"""``sfumato.compare``: every certified method on the same data, as files, as one result and as a page. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from markupsafe import Markup

from sfumato.data.holdout import HoldOut
from sfumato.data.images import Options
from sfumato.durations import duration
from sfumato.evaluation.protocols import protocol_named
from sfumato.evaluation.results import REAL, ImageCounts, LeftOut, Measurement, metric_named
from sfumato.experiments.comparison import (
    HOLD_OUT,
    ComparedMethod,
    ComparisonResult,
    chosen_methods,
    comparison_conditions,
    gather_comparison,
    planned_epsilon,
    run_comparison,
    to_csv,
)
from sfumato.experiments.runner import Progress, ignore
from sfumato.experiments.spec import EvaluationSpec, TrainingSpec
from sfumato.files import write_file, write_json
from sfumato.methods import Method
from sfumato.methods.registry import load
from sfumato.privacy.budget import Unit
from sfumato.report.chart import Point, Series, Table, curve, left_out_text, mebibytes_text
from sfumato.report.pages import render_not_private, sample_rows

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
    text = duration(seconds.mean)
    return text if seconds.std is None else f"{text} ± {seconds.std:.1f} s"


def _memory(entry: ComparedMethod) -> str:
    text, device = mebibytes_text(entry.peak_memory.mean), entry.peak_device_memory
    return text if device is None else f"{text} + {mebibytes_text(device)} on the GPU"


def _settings(entry: ComparedMethod) -> str:
    parameters = ", ".join(f"{key} = {value}" for key, value in entry.parameters.items())
    return f"{entry.paper}. {parameters}"


def compare(
    data: str | Path,
    *,
    out: str | Path,
    methods: Sequence[Method] | str = "all",
    epsilon: Sequence[float] = (1.0, 10.0),
    delta: float = 1e-5,
    unit: Unit | None = None,
    seeds: int = 1,
    protocol: str = "sinkhorn",
    images: int | None = None,
    feature_images: int | None = None,
    with_inception: bool = True,
    test: str | Path | None = None,
    hold_out: float | None = None,
    device: str = "cpu",
    jobs: int | None = None,
    report: Callable[[Progress], None] = ignore,
    planned: Callable[[float, int], None] | None = None,
    **options: Unpack[Options],
) -> ComparisonResult:
    """Train and evaluate certified methods alike, and write a table, a curve and a page. The result is NOT PRIVATE.

    Each training is a run of its own with its own ledger. A comparison that was interrupted continues where it was
    when the same call is made again. Bad images are refused before ``out`` is begun.

    Args:
        data: The private images; they are read from files, as ``sfumato.read`` does it.
        out: The comparison's folder.
        methods: Configured methods, or names with commas between; by default every method in its certified form.
        epsilon: The budgets.
        delta: δ of the guarantee; well below one over the number of units.
        unit: What is protected; by default persons, where the collection names them, and else images.
        seeds: Independent trainings of each method at each ε.
        protocol: The name of the evaluation's protocol.
        images: Synthetic images of each run; by default the protocol's number.
        feature_images: Images of each set for FID and KID.
        with_inception: Whether to measure FID and KID.
        test: The real test images, if they are elsewhere.
        hold_out: Hold out this share of the units at random to test on.
        device: Where networks run, ``cpu`` or ``cuda``.
        jobs: Processes that train at a time, each with its own time and memory; by default all runs are done in this
            process. A script that asks for processes needs ``if __name__ == "__main__":``.
        report: Called after every run.
        planned: Called with the ε of all runs together and their number, before any image is read.
        options: How the images are read, as for ``sfumato.read``.

    Returns:
        Every value; ``comparison.json``, ``comparison.csv`` and ``comparison.html`` in ``out`` hold the same.
    """
    folder = Path(out)
    chosen = chosen_methods(methods) if isinstance(methods, str) else list(methods)
    evaluation = EvaluationSpec(
        protocol=protocol,
        images=images or protocol_named(protocol).synthetic_count,
        feature_images=feature_images,
        inception_trainings=None if with_inception else 0,
    )
    budgets = sorted(set(epsilon))
    # The first training of every method and ε before the second of any.
    trainings = [
        TrainingSpec(method, budget, number) for number in range(seeds) for budget in budgets for method in chosen
    ]
    total = planned_epsilon(trainings, delta)
    if planned is not None:
        planned(total, len(trainings))
    division = None
    if hold_out is not None:
        kept = folder / HOLD_OUT
        division = HoldOut.load(kept) if kept.exists() else HoldOut.drawn(hold_out, unit=unit)
    conditions = comparison_conditions(
        Path(data),
        out=folder,
        test=None if test is None else Path(test),
        division=division,
        evaluation=evaluation,
        device=device,
        delta=delta,
        unit=unit,
        options=options,
    )
    failed = run_comparison(trainings, conditions, division=division, jobs=jobs, report=report)
    result = gather_comparison(trainings, conditions, failed=failed)
    write_comparison(result, folder)
    return result


def write_comparison(result: ComparisonResult, out: Path) -> list[Path]:
    """Write ``comparison.json``, ``comparison.csv`` and ``comparison.html``, readable by their owner alone."""
    pictures = [sample_rows(load(out / entry.runs[0] / "release"), each=10) for entry in result.entries]
    return [
        write_json(out / "comparison.json", result.to_json(), private=True),
        write_file(out / "comparison.csv", to_csv(result), private=True),
        write_file(out / "comparison.html", comparison_page(result, pictures), private=True),
    ]
