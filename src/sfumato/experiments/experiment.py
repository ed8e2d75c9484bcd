"""Experiments of a TOML file: laid out as tasks, and gathered into result sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from sfumato.evaluation.protocols import protocol_named
from sfumato.experiments.datasets import DatasetLocator
from sfumato.experiments.gather import Evaluated, result_row
from sfumato.experiments.papers.entries import limited
from sfumato.experiments.results import ResultSet, provenance
from sfumato.experiments.runner import Task
from sfumato.experiments.spec import (
    REAL,
    Conditions,
    EvaluationSpec,
    ExperimentSpec,
    SamplingVariant,
    TrainingSpec,
    VariantSpec,
)
from sfumato.experiments.training import Baselines, Trial

REAL_ROW = "real training data"


@dataclass(frozen=True)
class Line:
    """One line of an experiment's result."""

    setting: str
    epsilon: float
    evaluated: Evaluated


@dataclass(frozen=True)
class Layout:
    """An experiment on this machine: its tasks, by number of the training, and the lines that they fill."""

    experiment: ExperimentSpec
    tasks: tuple[tuple[Task, ...], ...]
    lines: tuple[Line, ...]


def lay_out(experiment: ExperimentSpec, *, locator: DatasetLocator, out: Path, device: str) -> Layout:
    """All trainings of an experiment. A misspelt setting or a dataset that is not available is an error here."""
    rounds: list[list[Task]] = [[] for _ in range(experiment.trainings)]
    lines: list[Line] = []
    for data, epsilon, case in experiment.settings():
        conditions = _conditions(experiment, data, locator, out / experiment.name, device)
        if experiment.method == REAL:
            # Noise and halves of the real data would take three times as long again and are not in the result.
            rounds[0].append(Baselines(conditions, experiment.trainings, REAL_ROW))
            lines += [
                Line(REAL_ROW, math.inf, Evaluated(conditions, (), protocol=place, baseline=REAL_ROW))
                for place in range(len(conditions.evaluations))
            ]
            continue
        method, name = experiment.configured(case), experiment.setting_name(case)
        method = limited(method) if experiment.small else method
        trainings = tuple(TrainingSpec(method, epsilon, number, name) for number in range(experiment.trainings))
        for training in trainings:
            variants = _variants(experiment, data, training.number)
            trial = Trial(training, conditions, variants, experiment.measures, bool(experiment.protocols))
            rounds[training.number].append(trial)
        for variant in _variants(experiment, data, 0):
            setting = f"{name}, {variant.name}" if variant.name else name
            lines += [
                Line(setting, epsilon, Evaluated(conditions, trainings, variant, place))
                for place in range(len(conditions.evaluations))
            ]
    return Layout(experiment, tuple(tuple(tasks) for tasks in rounds), tuple(lines))


def in_order(layouts: list[Layout]) -> list[Task]:
    """The first training of every setting before the second of any."""
    most = max((len(layout.tasks) for layout in layouts), default=0)
    return [
        task
        for number in range(most)
        for layout in layouts
        for task in (layout.tasks[number] if number < len(layout.tasks) else ())
    ]


def gather(layout: Layout, *, command: str, device: str, failed: dict[str, str]) -> ResultSet:
    """What was measured so far."""
    found = [result_row(line.evaluated, setting=line.setting, epsilon=line.epsilon) for line in layout.lines]
    own = {str(task) for tasks in layout.tasks for task in tasks}
    return ResultSet(
        name=layout.experiment.name,
        title=layout.experiment.note,
        scale="small" if layout.experiment.small else "full" if layout.experiment.records is None else "part",
        provenance=provenance(command, device),
        rows=tuple(row for row in found if row is not None),
        failed={name: reason for name, reason in failed.items() if name in own},
    )


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
    spec = locator.require(data).spec(
        unit=experiment.unit, records=experiment.records, validation=experiment.validation
    )
    evaluations = tuple(
        EvaluationSpec(
            protocol=name,
            images=experiment.images or protocol_named(name).synthetic_count,
            feature_images=experiment.feature_images,
            inception_trainings=experiment.fid,
            classifiers=experiment.classifiers,
            # The networks of the other protocols are so small that it would gain nothing.
            bfloat16=experiment.bfloat16 and protocol_named(name).several_networks,
            together=experiment.classifiers_together,
        )
        for name in experiment.protocols or ("sinkhorn",)
    )
    return Conditions(spec, evaluations, device, out / data, experiment.delta, experiment.unit)


def _variants(experiment: ExperimentSpec, data: str, number: int) -> tuple[SamplingVariant, ...]:
    def wanted(variant: VariantSpec) -> bool:
        return variant.trainings is None or number < variant.trainings

    own = (variant.on(data, name) for name, variant in experiment.variants.items() if wanted(variant))
    return (SamplingVariant(), *own)
