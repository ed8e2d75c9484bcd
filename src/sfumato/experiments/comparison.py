"""A comparison of methods on the same data: its trainings, its result gathered from their files, and its total cost."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sfumato.data.holdout import HoldOut, check_test_part, read_train_and_test
from sfumato.data.images import Options
from sfumato.evaluation.results import SYNTHETIC, EvaluationResult, Measurement
from sfumato.experiments.layout import read_json
from sfumato.experiments.results import NOTICE, Measured
from sfumato.experiments.runner import Progress, Task, begin, ignore, run_tasks
from sfumato.experiments.spec import Conditions, DataSpec, EvaluationSpec, SamplingVariant, TrainingSpec
from sfumato.experiments.training import Baselines, Trial, baselines_file, evaluation_file
from sfumato.files import write_json
from sfumato.methods import METHODS, Method, find
from sfumato.privacy import Budget, Event, Ledger
from sfumato.privacy.accounting import epsilon
from sfumato.release.card import rounded_up

HOLD_OUT = "hold_out.json"
_DEFAULTS: dict[str, Any] = {
    "labelled": True,
    "unlabelled": "refuse",
    "missing_persons": "refuse",
    "skip_bad": False,
    "internal": False,
}


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


def comparison_conditions(
    data: Path,
    *,
    out: Path,
    test: Path | None,
    division: HoldOut | None,
    evaluation: EvaluationSpec,
    device: str,
    delta: float,
    unit: str | None,
    options: Options,
) -> Conditions:
    """The conditions of a comparison. The images are read once, so that bad ones are refused before ``out`` is begun.

    Without ``unit`` a person is protected where the collection names persons.
    """
    if division is None and test is None:
        check_test_part(data)
    reading = options.copy()
    reading.pop("split", None)
    train, _ = read_train_and_test(data, test, hold_out=division, **reading)
    given = {key: value for key, value in reading.items() if value != _DEFAULTS.get(key) and key != "progress"}
    if reading.get("person_file") is not None:
        given["person_file"] = str(Path(str(reading["person_file"])).resolve())
    if unit == "person" and train.persons is None:
        raise ValueError(
            "the guarantee is to hold per person, but the collection names no persons: "
            "use --person-column, --persons or --person-pattern"
        )
    if unit is None:
        unit = "image" if train.persons is None else "person"
    source = DataSpec(data.resolve().name, data, test, given, hold_out=None if division is None else out / HOLD_OUT)
    return Conditions(source, (evaluation,), device, out, delta, unit)


def planned_epsilon(trainings: Sequence[TrainingSpec], delta: float) -> float:
    """What all runs will cost together; a budget that cannot be met is refused here, before anything is touched."""
    plans = {
        (one.name, one.epsilon): one.method.plan(Budget(one.epsilon, delta)) for one in trainings if not one.number
    }
    return composed_epsilon([event for one in trainings for event in plans[one.name, one.epsilon].events], delta)


def run_comparison(
    trainings: Sequence[TrainingSpec],
    conditions: Conditions,
    *,
    division: HoldOut | None = None,
    jobs: int | None = None,
    report: Callable[[Progress], None] = ignore,
) -> dict[str, str]:
    """Run what is not finished, ``jobs`` processes at a time or in this one; the reason for each run that failed."""
    data = conditions.data
    paths = {"path": str(data.train.resolve()), "test": None if data.test is None else str(data.test.resolve())}
    share = None if division is None else division.share
    begin(conditions.out, {**conditions.facts(), **paths, "hold_out": share}, what="comparison")
    if division is not None and data.hold_out is not None and not data.hold_out.exists():
        division.save(data.hold_out)
    tasks: list[Task] = [Baselines(conditions), *(Trial(training, conditions) for training in trainings)]
    return run_tasks(tasks, jobs=jobs or 1, in_process=jobs is None, report=report)


@dataclass(frozen=True)
class ComparedMetric(Measured):
    """A metric with its heading; ``features`` is the identity of the feature network, if it has one."""

    heading: str = ""
    metric: str = ""
    classifier: str | None = None
    features: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ClassSummary(Measured):
    """The accuracy of one class."""

    name: str = ""


@dataclass(frozen=True)
class ComparedMethod:
    """All finished runs of one method at one ε. ``spent`` is the largest ε of their ledgers."""

    method: str
    variant: str
    name: str
    paper: str
    parameters: Mapping[str, Any]
    epsilon: float
    spent: float
    runs: tuple[str, ...]
    metrics: tuple[ComparedMetric, ...]
    worst_class: ClassSummary | None
    seconds: Measured
    peak_memory: Measured
    peak_device_memory: float | None
    threads: int
    resumed: int

    def to_json(self) -> dict[str, Any]:
        """As ``comparison.json`` has it."""
        content = asdict(self)
        if self.worst_class is not None:
            content["worst_class"]["class"] = content["worst_class"].pop("name")
        return content


@dataclass(frozen=True)
class ComparisonResult:
    """Everything that a comparison measured. NOT PRIVATE.

    ``facts`` are the conditions; ``baselines`` are measurements as an evaluation writes them; ``composed`` is the total
    cost of all runs; ``about`` says what the evaluation says about itself (counts, versions, what was left out).
    """

    facts: Mapping[str, Any]
    device: str
    about: Mapping[str, Any]
    composed: Mapping[str, Any]
    entries: tuple[ComparedMethod, ...]
    baselines: tuple[Mapping[str, Any], ...]
    failed: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """As ``comparison.json`` has it."""
        return {
            "notice": NOTICE,
            **self.facts,
            "device": self.device,
            **self.about,
            "composed": dict(self.composed),
            "entries": [entry.to_json() for entry in self.entries],
            "baselines": [dict(entry) for entry in self.baselines],
            "failed": dict(self.failed),
        }


def gather_comparison(
    trainings: Sequence[TrainingSpec], conditions: Conditions, *, failed: Mapping[str, str]
) -> ComparisonResult:
    """Everything that was measured, one entry for each method and ε."""
    base = read_json(baselines_file(conditions))
    baselines = [] if base is None else base["measurements"]
    groups: dict[tuple[str, float], list[TrainingSpec]] = {}
    order = list(dict.fromkeys(training.name for training in trainings))
    for training in sorted(trainings, key=lambda one: (order.index(one.name), one.epsilon, one.number)):
        groups.setdefault((training.name, training.epsilon), []).append(training)
    entries = [found for group in groups.values() if (found := _entry(group, conditions, baselines)) is not None]
    return ComparisonResult(
        facts=conditions.facts(),
        device=conditions.device,
        about={
            "protocol_details": None if base is None else base["protocol"],
            "counts": None if base is None else base["counts"],
            "versions": None if base is None else base["versions"],
            "left_out": [] if base is None else base["left_out"],
        },
        composed=_composed(conditions),
        entries=tuple(entries),
        baselines=tuple(baselines),
        failed=dict(failed),
    )


def _composed(conditions: Conditions) -> dict[str, Any]:
    # An empty file belongs to a run that was killed before it asked anything.
    paths = sorted((conditions.out / "runs").glob("*/*/*/ledger.jsonl"))
    ledgers = [path for path in paths if path.stat().st_size]
    events = [event for path in ledgers for event in Ledger.read(path).events()]
    total = composed_epsilon(events, conditions.delta)
    return {"epsilon": rounded_up(total), "delta": conditions.delta, "ledgers": len(ledgers)}


def composed_epsilon(events: Iterable[Event], delta: float) -> float:
    """What all runs cost one unit that is added or removed.

    Runs over shards are counted under replace-one, and everything on their ledger with them: for many runs of all kinds
    that has no finite answer. The two kinds apart, at half of δ each, have one, and add up.
    """
    kinds: dict[bool, list[Event]] = {}
    for event in events:
        kinds.setdefault(getattr(event, "shards", None) is not None, []).append(event)
    total = epsilon([event for kind in kinds.values() for event in kind], delta)
    return total if math.isfinite(total) else sum(epsilon(kind, delta / 2) for kind in kinds.values())


def _entry(
    group: Sequence[TrainingSpec], conditions: Conditions, baselines: list[dict[str, Any]]
) -> ComparedMethod | None:
    """Mean and deviation over the finished runs of one method at one ε."""
    name = evaluation_file(SamplingVariant(), conditions)
    folders = [training.folder(conditions.out) for training in group]
    done = [folder for folder in folders if (folder / "internal" / name).exists()]
    if not done:
        return None
    evaluations = [_with_baselines(folder / "internal" / name, baselines) for folder in done]
    cards = [read_json(folder / "release" / "card.json") or {} for folder in done]
    costs = [read_json(folder / "internal" / "cost.json") or {} for folder in done]
    method = group[0].method
    return ComparedMethod(
        method=method.name,
        variant=method.variant,
        name=group[0].name,
        paper=method.paper,
        parameters=method.parameters(),
        epsilon=group[0].epsilon,
        spent=max(card["epsilon"] for card in cards),
        runs=tuple(str(folder.relative_to(conditions.out)) for folder in done),
        metrics=_metrics(evaluations),
        worst_class=_worst_class(evaluations),
        seconds=Measured.of([cost["seconds"] for cost in costs]),
        peak_memory=Measured.of([float(cost["peak_memory"]) for cost in costs]),
        peak_device_memory=max((cost["peak_device_memory"] or 0 for cost in costs), default=0) or None,
        threads=max(cost["threads"] for cost in costs),
        resumed=sum(bool(cost["resumed"]) for cost in costs),
    )


def _metrics(evaluations: Sequence[Mapping[str, Any]]) -> tuple[ComparedMetric, ...]:
    values: dict[tuple[str, str | None], list[float]] = {}
    about: dict[tuple[str, str | None], dict[str, Any]] = {}
    for evaluation in evaluations:
        for entry in evaluation["measurements"]:
            if entry["row"] == SYNTHETIC:
                key = (Measurement.from_json(entry).heading, entry["classifier"])
                values.setdefault(key, []).append(entry["mean"])
                about.setdefault(key, {name: entry[name] for name in ("metric", "classifier", "features")})
    return tuple(
        ComparedMetric(**asdict(Measured.of(found)), heading=key[0], **about[key]) for key, found in values.items()
    )


def _with_baselines(path: Path, baselines: list[dict[str, Any]]) -> dict[str, Any]:
    """A run's evaluation; the baselines that were measured once for all runs are added to its file."""
    evaluation: dict[str, Any] = json.loads(path.read_text())
    if baselines and all(entry["row"] == SYNTHETIC for entry in evaluation["measurements"]):
        evaluation["measurements"] += baselines
        write_json(path, evaluation, private=True)
    return evaluation


def _worst_class(evaluations: Sequence[dict[str, Any]]) -> ClassSummary | None:
    """The class with the lowest accuracy on average over the runs."""
    shares: dict[str, list[float]] = {}
    for evaluation in evaluations:
        found = EvaluationResult.from_json(evaluation).by_class()
        for one in (found.per_class or ()) if found else ():
            if one.mean is not None:
                shares.setdefault(one.name, []).append(one.mean)
    if not shares:
        return None
    name = min(shares, key=lambda key: statistics.fmean(shares[key]))
    return ClassSummary(**asdict(Measured.of(shares[name])), name=name)


def to_csv(result: ComparisonResult) -> str:
    """A line for each method, ε and metric, and for each baseline."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    columns = ("method", "variant", "epsilon", "spent", "delta", "unit", "data", "protocol", "metric", "classifier")
    writer.writerow((*columns, "features", "mean", "std", "runs", "private"))
    shared = tuple(result.facts[key] for key in ("delta", "unit", "data", "protocol"))

    def line(
        who: tuple[Any, ...], metric: str, mean: float, std: float | None, runs: int, more: Mapping[str, Any]
    ) -> None:
        named = (metric, more.get("classifier") or "", (more.get("features") or {}).get("name", ""))
        writer.writerow((*who, *shared, *named, mean, "" if std is None else std, runs, False))

    for entry in result.entries:
        who, runs = (entry.method, entry.variant, entry.epsilon, entry.spent), len(entry.runs)
        for found in entry.metrics:
            line(who, found.metric, found.mean, found.std, runs, asdict(found))
        for name, summary in (("seconds", entry.seconds), ("peak_memory", entry.peak_memory)):
            line(who, name, summary.mean, summary.std, runs, {})
        if entry.worst_class is not None:
            worst = entry.worst_class
            line(who, f"accuracy of class {worst.name}, the worst", worst.mean, worst.std, runs, {})
    for base in result.baselines:
        line((base["row"], "baseline", "", ""), base["metric"], base["mean"], base["std"], 1, base)
    return buffer.getvalue()
