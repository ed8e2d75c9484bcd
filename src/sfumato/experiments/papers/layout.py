"""An entry on this machine: which trainings it takes, and where the numbers of each row will be found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from sfumato.experiments.datasets import DatasetLocator, LocatedDataset
from sfumato.experiments.gather import Evaluated
from sfumato.experiments.measures import PROTOCOL
from sfumato.experiments.papers.computed import Computation
from sfumato.experiments.papers.entries import Case, Entry, Setting
from sfumato.experiments.papers.scale import Scale
from sfumato.experiments.runner import Task
from sfumato.experiments.spec import Conditions, EvaluationSpec, SamplingVariant, TrainingSpec
from sfumato.experiments.training import Baselines, Trial


@dataclass(frozen=True)
class EntryRow:
    """One setting in one case; ``place`` is the case's index. A row with neither is not run here."""

    case: Case
    place: int
    setting: Setting
    evaluated: Evaluated | None = None
    computations: tuple[Computation, ...] = ()


@dataclass(frozen=True)
class Layout:
    """All rows, and the tasks that fill them."""

    rows: tuple[EntryRow, ...]
    tasks: tuple[Task, ...]


def lay_out(
    entry: Entry,
    *,
    locator: DatasetLocator,
    scale: Scale,
    out: Path,
    device: str,
    inception_head: Path | None = None,
) -> Layout:
    """A dataset that is not available is an error; a setting without an implementation is a row without numbers."""
    if entry.computation:
        return _computations(entry, scale, out)
    evaluation = EvaluationSpec(
        protocol=entry.protocol,
        images=scale.images,
        feature_images=scale.feature_images,
        inception_trainings=None if scale.inception else 0,
        inception_head=inception_head,
    )
    rows: list[EntryRow] = []
    names: dict[tuple[Path, str, float], str] = {}
    for case, place, setting in entry.rows():
        if setting.missing or not (setting.method or setting.baseline):
            rows.append(EntryRow(case, place, setting))
            continue
        located = locator.require(case.data)
        conditions = _conditions(entry, case, located, scale, evaluation, out, device)
        if setting.baseline:
            rows.append(EntryRow(case, place, setting, Evaluated(conditions, (), baseline=setting.baseline)))
            continue
        public = {"public": str(locator.require(setting.public).train)} if setting.public else {}
        here = replace(case, data=located.dataset.name)
        method = scale.method(setting, here, **public)
        epsilon = setting.budget(case.epsilon)
        # Settings that differ only in sampling share a training, which is named after the first of them.
        name = names.setdefault((conditions.out, repr(method), epsilon), setting.name)
        sampling = setting.sampled_on(here)
        variant = SamplingVariant(setting.name, sampling) if sampling else SamplingVariant()
        trainings = tuple(TrainingSpec(method, epsilon, number, name) for number in range(scale.trainings))
        rows.append(EntryRow(case, place, setting, Evaluated(conditions, trainings, variant)))
    return Layout(tuple(rows), _tasks(rows, entry, baselines=scale.name == "full"))


def _conditions(
    entry: Entry,
    case: Case,
    located: LocatedDataset,
    scale: Scale,
    evaluation: EvaluationSpec,
    out: Path,
    device: str,
) -> Conditions:
    subset = "" if case.records is None else f"-{case.records}"
    data = located.spec(records=scale.records_of(case), test_records=scale.records)
    return Conditions(data, (evaluation,), device, out / f"{located.dataset.name}{subset}", entry.delta)


def _tasks(rows: list[EntryRow], entry: Entry, *, baselines: bool) -> tuple[Task, ...]:
    """Each training once, with all its sampling variants; baselines once for each dataset, always or where needed."""
    measures = tuple(name for name in entry.measures if name != PROTOCOL)
    by_protocol = PROTOCOL in entry.measures
    tasks: dict[Path, Task] = {}
    for row in rows:
        if row.evaluated is None:
            continue
        conditions, variant = row.evaluated.conditions, row.evaluated.variant
        if by_protocol and (baselines or row.setting.baseline):
            tasks.setdefault(conditions.out, Baselines(conditions))
        for training in row.evaluated.trainings:
            folder = training.folder(conditions.out)
            known = tasks.get(folder)
            variants = known.variants if isinstance(known, Trial) else ()
            variants = variants if variant in variants else (*variants, variant)
            tasks[folder] = Trial(training, conditions, variants, measures, by_protocol)
    return tuple(tasks.values())


def _computations(entry: Entry, scale: Scale, out: Path) -> Layout:
    rows = []
    for case, place, setting in entry.rows():
        number = 0 if setting.missing else scale.trainings
        work = tuple(Computation(entry.computation, setting, case, scale.name, run, out) for run in range(number))
        rows.append(EntryRow(case, place, setting, computations=work))
    return Layout(tuple(rows), tuple(task for row in rows for task in row.computations))
