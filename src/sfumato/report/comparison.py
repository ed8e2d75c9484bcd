"""``sfumato.compare``: certified methods trained and evaluated alike on one collection, with a page. NOT PRIVATE."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Unpack

from sfumato.data.holdout import HoldOut, check_test_part, read_train_and_test
from sfumato.data.images import Options
from sfumato.evaluation.protocols import protocol_named
from sfumato.evaluation.results import REAL, SYNTHETIC
from sfumato.experiments.layout import REAL_ROW, Evaluated, Layout, Line, gather, in_order, read_json, trials_of
from sfumato.experiments.results import Measured, ResultRow, ResultSet
from sfumato.experiments.runner import Progress, Task, begin, ignore, run_tasks
from sfumato.experiments.spec import Conditions, DataSpec, EvaluationSpec, TrainingSpec
from sfumato.experiments.training import Baselines, baselines_file
from sfumato.files import write_file, write_json
from sfumato.methods import METHODS, Method, find
from sfumato.privacy import Budget, Event, Ledger
from sfumato.privacy.accounting import epsilon as epsilon_of
from sfumato.privacy.budget import Unit
from sfumato.release.card import rounded_up
from sfumato.report.chart import Point, Series, curve, figure, mebibytes_text
from sfumato.report.pages import not_private_page
from sfumato.report.papers import number, samples_of
from sfumato.texts import duration

HOLD_OUT = "hold_out.json"


def chosen_methods(names: str, settings: Iterable[str] = ()) -> list[Method]:
    """Configured methods: each registered one in its first certified form (``all``), or those that are named.

    Args:
        names: ``all``, or names with commas between; ``NAME:VARIANT`` for a variant.
        settings: ``key=value`` for every method that has the parameter, ``method.key=value`` for one.
    """
    wanted = []
    for name in METHODS if names == "all" else [part.strip() for part in names.split(",")]:
        base, variant = _method_and_variant(name)
        certified = find(base).certified_variants()
        if variant and variant not in certified:
            listed = ", ".join(certified) or "none"
            raise ValueError(f"{base} has no certified variant {variant!r}; it has {listed}. Only these are compared")
        if certified:
            wanted.append((base, variant or certified[0]))
    values: dict[str, dict[str, str]] = {base: {} for base, _ in wanted}
    for setting in settings:
        key, separator, value = (part.strip() for part in setting.partition("="))
        if not separator:
            raise ValueError(f"--set takes key=value or method.key=value, not {setting!r}")
        owner, dot, own_key = key.rpartition(".")
        takers = [owner] if dot else [base for base, _ in wanted if key in find(base)().parameters()]
        if not takers or takers[0] not in values:
            raise ValueError(f"--set {key}: none of the compared methods ({', '.join(values)}) takes it")
        for taker in takers:
            values[taker][own_key] = value
    return [find(base).configured({"variant": variant, **values[base]}) for base, variant in wanted]


def _method_and_variant(name: str) -> tuple[str, str]:
    """``dp-lflow:conditional`` and ``module:Class:variant`` in two; without a variant it is empty."""
    parts = name.split(":")
    module = parts[0] not in METHODS and parts[0].replace(".", "").isidentifier()
    return ":".join(parts[: 1 + module]), ":".join(parts[1 + module :])


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
) -> ResultSet:
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
        A row for the real images and for each method at each ε; ``comparison.json`` in ``out`` holds the same, and
        ``comparison.html`` shows it.
    """
    out = Path(out)
    chosen = chosen_methods(methods) if isinstance(methods, str) else list(methods)
    trainings = [
        tuple(TrainingSpec(method, budget, run) for run in range(seeds))
        for method in chosen
        for budget in sorted(set(epsilon))
    ]
    # A budget that cannot be met is refused here, before anything is touched.
    events = [one.method.plan(Budget(one.epsilon, delta)).events * seeds for one, *_ in trainings]
    if planned is not None:
        planned(composed_epsilon([event for own in events for event in own], delta), seeds * len(trainings))
    division = None
    if hold_out is not None:
        kept = out / HOLD_OUT
        division = HoldOut.load(kept) if kept.exists() else HoldOut.drawn(hold_out, unit=unit)
    source, unit = _source(Path(data), None if test is None else Path(test), division, out, unit, options)
    evaluation = EvaluationSpec(
        protocol=protocol,
        images=images or protocol_named(protocol).synthetic_count,
        feature_images=feature_images,
        inception_trainings=None if with_inception else 0,
    )
    conditions = Conditions(source, (evaluation,), device, out, delta, unit)
    paths = {"path": str(source.train.resolve()), "test": None if test is None else str(Path(test).resolve())}
    begin(out, {**conditions.facts(), **paths, "hold_out": hold_out}, what="comparison")
    if division is not None and not (out / HOLD_OUT).exists():
        division.save(out / HOLD_OUT)
    lines = [Line(REAL_ROW, source.name, math.inf, evaluated=Evaluated(conditions, (), baseline=REAL_ROW))]
    lines += [Line(one[0].name, source.name, one[0].epsilon, evaluated=Evaluated(conditions, one)) for one in trainings]
    tasks: tuple[Task, ...] = (Baselines(conditions), *trials_of(lines, measures=(), by_protocol=True))
    layout = Layout("comparison", "", "full", tuple(lines), tasks)
    failed = run_tasks(in_order([layout]), jobs=jobs or 1, in_process=jobs is None, report=report)
    _add_baselines(lines, conditions)
    result = gather(layout, command="sfumato compare", device=device, failed=failed)
    result = replace(result, title=_spent(conditions))
    write_json(out / "comparison.json", result.to_json(), private=True)
    write_file(out / "comparison.html", comparison_page(result, lines, protocol), private=True)
    return result


def _source(
    data: Path, test: Path | None, division: HoldOut | None, out: Path, unit: Unit | None, options: Options
) -> tuple[DataSpec, Unit]:
    """The collection, which is read once, so that bad images are refused before ``out`` is begun; and the unit."""
    if division is None and test is None:
        check_test_part(data)
    reading = options.copy()
    reading.pop("split", None)
    train, _ = read_train_and_test(data, test, hold_out=division, **reading)
    if unit == "person" and train.persons is None:
        raise ValueError(
            "the guarantee is to hold per person, but the collection names no persons: "
            "use --person-column, --persons or --person-pattern"
        )
    given: dict[str, Any] = {key: value for key, value in reading.items() if value not in (None, False)}
    if "person_file" in given:
        given["person_file"] = str(Path(given["person_file"]).resolve())
    kept = None if division is None else out / HOLD_OUT
    source = DataSpec(data.resolve().name, data, test, given, hold_out=kept)
    return source, unit or ("image" if train.persons is None else "person")


def composed_epsilon(events: Iterable[Event], delta: float) -> float:
    """What all runs cost one unit that is added or removed.

    Runs over shards are counted under replace-one, and everything on their ledger with them: for many runs of all kinds
    that has no finite answer. The two kinds apart, at half of δ each, have one, and add up.
    """
    kinds: dict[bool, list[Event]] = {}
    for event in events:
        kinds.setdefault(getattr(event, "shards", None) is not None, []).append(event)
    total = epsilon_of([event for kind in kinds.values() for event in kind], delta)
    return total if math.isfinite(total) else sum(epsilon_of(kind, delta / 2) for kind in kinds.values())


def _spent(conditions: Conditions) -> str:
    """What all runs have cost together, those that were begun again included."""
    # An empty file belongs to a run that was killed before it asked anything.
    paths = [path for path in conditions.out.glob("runs/*/*/*/ledger.jsonl") if path.stat().st_size]
    events = [event for path in sorted(paths) for event in Ledger.read(path).events()]
    runs = f"{len(paths)} run{'s' * (len(paths) != 1)}"
    return (
        f"{runs} queried this collection, with a ledger for each: together ε = "
        f"{rounded_up(composed_epsilon(events, conditions.delta)):g} at δ = {conditions.delta:g} for each "
        f"{conditions.unit}"
    )


def _add_baselines(lines: Sequence[Line], conditions: Conditions) -> None:
    """Put the baselines, which are measured once, into the evaluation of every run, for its report."""
    baselines = read_json(baselines_file(conditions))
    trained = [line.evaluated for line in lines if line.evaluated and line.evaluated.trainings]
    for path in [path for one in trained for path in one.files]:
        found = read_json(path)
        if baselines and found and all(entry["row"] == SYNTHETIC for entry in found["measurements"]):
            found["measurements"] += baselines["measurements"]
            write_json(path, found, private=True)


def comparison_page(result: ResultSet, lines: Sequence[Line], protocol: str) -> str:
    """The curve, every number and samples of each method."""
    body = f"<h1>Comparison on {escape(lines[0].data)}</h1><p>Protocol {escape(protocol)}. {escape(result.title)}.</p>"
    chart = _chart(result, protocol_named(protocol).agreement_classifier)
    body += f"<h2>Privacy and utility</h2>{chart}" if chart else ""
    names = list(dict.fromkeys(name for row in result.rows for name in row.values))
    head = "".join(f'<th class="number">{escape(name)}</th>' for name in (*names, "training", "peak memory"))
    rows = "".join(_row(row, names) for row in result.rows)
    body += f'<h2>Every number</h2><div class="scroll"><table class="wide"><tr><th></th>{head}</tr>{rows}</table></div>'
    pictures = "".join(map(samples_of, lines))
    body += f'<h2>Samples</h2><div class="gallery">{pictures}</div>' if pictures else ""
    body += "".join(f"<p>Failed: {escape(name)}: {escape(reason)}</p>" for name, reason in result.failed.items())
    return not_private_page(f"comparison on {lines[0].data}", body)


def _row(row: ResultRow, names: Sequence[str]) -> str:
    name = row.setting if row.epsilon is None else f"{row.setting}, ε {row.epsilon:g}"
    cells = [number(row.values.get(one)) for one in names]
    cells += ["–" if row.seconds is None else duration(row.seconds)]
    cells += ["–" if row.peak_memory is None else mebibytes_text(row.peak_memory)]
    return f"<tr><th>{escape(name)}</th>{''.join(f'<td class=number>{escape(cell)}</td>' for cell in cells)}</tr>"


def _chart(result: ResultSet, classifier: str) -> str:
    found: dict[str, list[Point]] = {}
    real: Measured | None = None
    for row in result.rows:
        value = row.values.get(classifier)
        if value is None:
            continue
        if row.epsilon is None:
            real = value
        else:
            found.setdefault(row.setting, []).append(Point(row.epsilon, value.mean, value.std))
    if not found:
        return ""
    drawn = curve(
        [Series(name, tuple(points)) for name, points in found.items()],
        x="ε (left: more private)",
        y=f"{classifier} accuracy on real test images, %",
        references={} if real is None else {REAL: real.mean},
    )
    several = max(row.trainings for row in result.rows) > 1
    note = "Error bars: one standard deviation over trainings. " * several
    note += "The axis spreads out high accuracies, so that good methods can be told apart."
    return str(figure("Which method reaches the highest accuracy at a given ε?", drawn, note))
