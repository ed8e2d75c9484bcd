"""What fills the lines of a result: the tasks of an experiment, and the rows gathered from their files."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.evaluation.protocols import protocol_named
from sfumato.evaluation.results import METRICS, SYNTHETIC
from sfumato.experiments.datasets import DatasetLocator, datasets
from sfumato.experiments.entries import limited
from sfumato.experiments.results import DataUsed, Measured, ResultRow, ResultSet, log_hash, provenance
from sfumato.experiments.runner import Task
from sfumato.experiments.spec import (
    REAL,
    Conditions,
    EvaluationSpec,
    ExperimentSpec,
    SamplingVariant,
    TrainingSpec,
)
from sfumato.experiments.training import Baselines, Trial, baselines_file, evaluation_file

PLAIN = SamplingVariant()
OWN_DISTANCE = "own-class distance"
_NAMES = {"fid": "FID", "kid": "KID × 1000", "label_agreement": "label agreement"}


@dataclass(frozen=True)
class Evaluated:
    """The trainings of one setting, and the sampling variant and protocol that are reported.

    ``baseline`` is the name of a baseline row to report in place of the trainings.
    """

    conditions: Conditions
    trainings: tuple[TrainingSpec, ...]
    variant: SamplingVariant = PLAIN
    protocol: int = 0
    baseline: str = ""

    @property
    def files(self) -> list[Path]:
        if self.baseline:
            return [baselines_file(self.conditions, self.protocol)]
        name = evaluation_file(self.variant, self.conditions, self.protocol)
        return [folder / "internal" / name for folder in self.folders]

    @property
    def folders(self) -> list[Path]:
        return [training.folder(self.conditions.out) for training in self.trainings]


@dataclass(frozen=True)
class Line:
    """One line of a result: a setting in a case, which is trained, computed (``files``), or not run here at all.

    ``subset`` is the number of records that the case takes, where that is not all of them.
    """

    setting: str
    data: str
    epsilon: float
    subset: int | None = None
    evaluated: Evaluated | None = None
    computation: str = ""
    method: str = ""
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Layout:
    """A result on this machine: its lines, and the tasks that fill them."""

    name: str
    title: str
    scale: str
    lines: tuple[Line, ...]
    tasks: tuple[Task, ...]


def trials_of(lines: Iterable[Line], *, measures: tuple[str, ...], by_protocol: bool) -> list[Trial]:
    """Each training once, with all its sampling variants."""
    found: dict[Path, Trial] = {}
    for line in lines:
        if line.evaluated is None:
            continue
        conditions, variant = line.evaluated.conditions, line.evaluated.variant
        for training in line.evaluated.trainings:
            folder = training.folder(conditions.out)
            known = found[folder].variants if folder in found else ()
            variants = known if variant in known else (*known, variant)
            found[folder] = Trial(training, conditions, variants, measures, by_protocol)
    return list(found.values())


def in_order(layouts: Iterable[Layout]) -> list[Task]:
    """The first training of every setting before the second of any."""
    tasks = [task for layout in layouts for task in layout.tasks]
    return sorted(tasks, key=lambda task: task.training.number if isinstance(task, Trial) else 0)


def gather(layout: Layout, *, command: str, device: str, failed: Mapping[str, str]) -> ResultSet:
    """What was measured so far: a row for each line that has numbers."""
    own = set(map(str, layout.tasks))
    found = [_computed_row(line) if line.files else _trained_row(line) for line in layout.lines]
    return ResultSet(
        name=layout.name,
        title=layout.title,
        scale=layout.scale,
        provenance=provenance(command, device),
        rows=tuple(row for row in found if row is not None),
        failed={name: reason for name, reason in failed.items() if name in own},
    )


def _trained_row(line: Line) -> ResultRow | None:
    """Everything measured about a setting; ``None`` before its first evaluation."""
    evaluated = line.evaluated
    if evaluated is None:
        return None
    written = [path for path in evaluated.files if path.exists()]
    if not written:
        return None
    contents = [json.loads(path.read_text()) for path in written]
    wanted = evaluated.baseline or SYNTHETIC
    conditions, spec = evaluated.conditions, evaluated.conditions.evaluations[evaluated.protocol]
    method = evaluated.trainings[0].method if evaluated.trainings else None
    parameters = {} if method is None else {**method.parameters(), **evaluated.variant.parameters}
    costs = [found for path in written if (found := read_json(path.parent / "cost.json")) and method is not None]
    logs = [part for path in written for part in (path, path.parent / "cost.json", path.parents[1] / "ledger.jsonl")]
    return ResultRow(
        setting=line.setting,
        data=_data_used(line, evaluated, contents),
        protocol=spec.protocol,
        epsilon=line.epsilon if math.isfinite(line.epsilon) else None,
        delta=conditions.delta,
        unit=conditions.unit,
        method=None if method is None else method.name,
        variant=None if method is None else method.variant,
        parameters=json.loads(json.dumps({name: without_folder(value) for name, value in parameters.items()})),
        spent=None if method is None else _spent(contents),
        images=spec.images,
        values=_values(contents, wanted, by_seed=bool(evaluated.baseline)),
        seconds=_mean(costs, "seconds"),
        processor_seconds=_mean(costs, "processor_seconds"),
        peak_memory=_mean(costs, "peak_memory"),
        megabytes=None if method is None else _megabytes(evaluated.folders[0]),
        log_sha256=log_hash(logs),
    )


def without_folder(value: object) -> object:
    """The last part of a path: where a public collection lies on a machine is no part of a result.

    >>> without_folder("/data/fashion-mnist"), without_folder("mmd")
    ('fashion-mnist', 'mmd')
    """
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _values(contents: Sequence[Mapping[str, Any]], row: str, *, by_seed: bool) -> dict[str, Measured]:
    """Each metric in the unit in which papers print it; a baseline's values are those of its classifier seeds."""
    found: dict[str, list[float]] = {}
    for content in contents:
        for entry in (*content["measurements"], *content.get("measures", ())):
            if entry["row"] != row:
                continue
            values = entry["values"] if by_seed else [entry["mean"]]
            factor = METRICS[entry["metric"]].scale if entry["metric"] in METRICS else 1.0
            found.setdefault(metric_name(entry), []).extend(factor * value for value in values)
    return {name: Measured.of(values) for name, values in found.items()}


def metric_name(entry: Mapping[str, Any]) -> str:
    """A metric as papers call it: an accuracy by its classifier."""
    if entry["metric"] == "accuracy":
        return str(entry["classifier"])
    if entry["metric"] == "frechet_distance":
        return OWN_DISTANCE
    name = _NAMES.get(entry["metric"], entry["metric"])
    features = entry.get("features")
    own = features is not None and not features["name"].startswith("inception")
    return f"own-class {name}" if own else str(name)


def _data_used(line: Line, evaluated: Evaluated, contents: Sequence[Mapping[str, Any]]) -> DataUsed:
    data = evaluated.conditions.data
    facts = read_json(evaluated.folders[0] / "internal" / "data.json") if evaluated.trainings else None
    counts = contents[0].get("counts") or {}
    return DataUsed(
        name=line.data,
        split="drawn" if data.drawn else data.split or "not stated",
        records=facts["records"] if facts else counts.get("real_train"),
        test_records=facts["test_records"] if facts else counts.get("real_test"),
        sha256=facts["sha256"] if facts else contents[0].get("data_sha256"),
        remark=data.remark,
        subset=line.subset,
    )


def _spent(contents: Sequence[Mapping[str, Any]]) -> float | None:
    spent = [content["guarantee"]["epsilon"] for content in contents]
    return None if None in spent else max(spent)


def _mean(costs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """``None`` where a training has no such number, since it was measured before this one was kept."""
    return (
        statistics.fmean(float(cost[key]) for cost in costs) if costs and all(key in cost for cost in costs) else None
    )


def _megabytes(folder: Path) -> float | None:
    path = folder / "release" / "model.safetensors"
    return path.stat().st_size / 1e6 if path.exists() else None


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file, if it exists."""
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


def _computed_row(line: Line) -> ResultRow | None:
    paths = [path for path in line.files if path.exists()]
    if not paths:
        return None
    contents = [json.loads(path.read_text()) for path in paths]
    spent = [content["guarantee"]["epsilon"] for content in contents]
    return ResultRow(
        setting=line.setting,
        data=DataUsed(line.data, "drawn" if datasets()[line.data].drawn else "none", subset=line.subset),
        protocol=line.computation,
        epsilon=line.epsilon,
        delta=1e-5,
        unit="record",
        method=line.method or None,
        parameters=contents[0]["parameters"],
        spent=None if None in spent else max(spent),
        values=_values(contents, SYNTHETIC, by_seed=False),
        holds=contents[0]["holds"],
        log_sha256=log_hash(paths),
    )


# The layout of an experiment

REAL_ROW = "real training data"


def lay_out(experiment: ExperimentSpec, *, locator: DatasetLocator, out: Path, device: str) -> Layout:
    """All trainings of an experiment. A misspelt setting or a dataset that is not available is an error here."""
    lines: list[Line] = []
    baselines: list[Task] = []
    for data, epsilon, case in experiment.settings():
        conditions = _conditions(experiment, data, locator, out / experiment.name, device)
        places, data = range(len(conditions.evaluations)), conditions.data.name
        if experiment.method == REAL:
            # Noise and halves of the real data would take three times as long again and are not in the result.
            baselines.append(Baselines(conditions, experiment.trainings, REAL_ROW))
            real = [Evaluated(conditions, (), protocol=place, baseline=REAL_ROW) for place in places]
            lines += [Line(REAL_ROW, data, math.inf, evaluated=one) for one in real]
            continue
        method, name = experiment.configured(case), experiment.setting_name(case)
        method = limited(method) if experiment.small else method
        trainings = tuple(TrainingSpec(method, epsilon, number, name) for number in range(experiment.trainings))
        variants = {"": (PLAIN, None)} | {
            key: (variant.on(data, key), variant.trainings) for key, variant in experiment.variants.items()
        }
        for variant, most in variants.values():
            setting = f"{name}, {variant.name}" if variant.name else name
            found = [Evaluated(conditions, trainings[:most], variant, place) for place in places]
            lines += [Line(setting, data, epsilon, evaluated=one) for one in found]
    trials = trials_of(lines, measures=experiment.measures, by_protocol=bool(experiment.protocols))
    scale = "small" if experiment.small else "full" if experiment.records is None else "part"
    return Layout(experiment.name, experiment.note, scale, tuple(lines), (*baselines, *trials))


def changed(
    experiment: ExperimentSpec,
    *,
    trainings: int | None,
    images: int | None,
    records: int | None,
    parameters: dict[str, str],
    small: bool = False,
) -> ExperimentSpec:
    """The experiment with what the command line changes in it."""
    given = {"trainings": trainings, "images": images, "records": records}
    kept = {key: value for key, value in given.items() if value is not None}
    if small:
        kept |= {"small": True, "fid": 0}  # Inception's features of all real images take longer than everything else
    return replace(experiment, parameters={**experiment.parameters, **parameters}, **kept)  # type: ignore[arg-type]


def _conditions(experiment: ExperimentSpec, data: str, locator: DatasetLocator, out: Path, device: str) -> Conditions:
    spec = locator.require(data).spec(unit=experiment.unit, records=experiment.records)
    evaluations = tuple(
        EvaluationSpec(
            protocol=name,
            images=experiment.images or protocol_named(name).synthetic_count,
            feature_images=experiment.feature_images,
            inception_trainings=experiment.fid,
            classifiers=experiment.classifiers,
        )
        for name in experiment.protocols or ("sinkhorn",)
    )
    return Conditions(spec, evaluations, device, out / data, experiment.delta, experiment.unit)
