"""An entry on this machine: its trainings, and their results beside the numbers that the paper prints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.experiments.datasets import DatasetLocator, LocatedDataset, datasets
from sfumato.experiments.gather import OWN_DISTANCE, Evaluated, result_row
from sfumato.experiments.measures import PROTOCOL
from sfumato.experiments.papers.computed import Computation
from sfumato.experiments.papers.entries import Case, Entry, Paper, Scale, Setting, Value
from sfumato.experiments.results import DataUsed, Measured, ResultRow, ResultSet, log_hash, provenance
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
class EntryLayout:
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
) -> EntryLayout:
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
    return EntryLayout(tuple(rows), _tasks(rows, entry, baselines=scale.name == "full"))


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


def _computations(entry: Entry, scale: Scale, out: Path) -> EntryLayout:
    rows = []
    for case, place, setting in entry.rows():
        number = 0 if setting.missing else scale.trainings
        work = tuple(Computation(entry.computation, setting, case, scale.name, run, out) for run in range(number))
        rows.append(EntryRow(case, place, setting, computations=work))
    return EntryLayout(tuple(rows), tuple(task for row in rows for task in row.computations))


def entry_name(paper: Paper, entry: Entry) -> str:
    """The name of an entry in commands and result files."""
    return f"{paper.key} {entry.name}"


def gather(
    paper: Paper, entry: Entry, layout: EntryLayout, *, scale: Scale, device: str, failed: Mapping[str, str]
) -> ResultSet:
    """What was measured so far: a row for each setting in each case that has numbers."""
    found = [_computed(entry, row) if row.computations else _trained(row) for row in layout.rows]
    command = f"sfumato reproduce {entry_name(paper, entry)} --scale {scale.name}"
    return ResultSet(
        name=entry_name(paper, entry),
        title=entry.title,
        scale=scale.name,
        provenance=provenance(command, device),
        rows=tuple(row for row in found if row is not None),
        failed=dict(failed),
    )


def _trained(row: EntryRow) -> ResultRow | None:
    if row.evaluated is None:
        return None
    found = result_row(row.evaluated, setting=row.setting.name, epsilon=row.case.epsilon, data=row.case.data)
    return None if found is None else replace(found, data=replace(found.data, subset=row.case.records))


def _computed(entry: Entry, row: EntryRow) -> ResultRow | None:
    paths = [computation.file for computation in row.computations if computation.file.exists()]
    if not paths:
        return None
    contents = [json.loads(path.read_text()) for path in paths]
    values: dict[str, list[float]] = {}
    for content in contents:
        for measurement in content["measurements"]:
            values.setdefault(measurement["metric"], []).append(measurement["mean"])
    spent = [content["guarantee"]["epsilon"] for content in contents]
    return ResultRow(
        setting=row.setting.name,
        data=DataUsed(row.case.data, "drawn" if datasets()[row.case.data].drawn else "none", subset=row.case.records),
        protocol=entry.computation,
        epsilon=row.case.epsilon,
        delta=entry.delta,
        unit="record",
        method=row.setting.method or None,
        parameters=contents[0]["parameters"],
        spent=None if None in spent else max(spent),
        values={name: Measured.of(found) for name, found in values.items()},
        holds=contents[0]["holds"],
        log_sha256=log_hash(paths),
    )


# Beside the paper's numbers


@dataclass(frozen=True)
class Compared:
    """A setting in a case: what the paper prints by metric, and our row, if there is one."""

    paper: Paper
    case: Case
    setting: Setting
    printed: Mapping[str, Value | None]
    ours: ResultRow | None

    @property
    def title(self) -> str:
        """The dataset, and how much of it where the paper takes a subset."""
        title = datasets()[self.case.data].title
        return title if self.case.records is None else f"{title}, {self.case.records} records"

    @property
    def trained(self) -> bool:
        """Whether ours is a training, not a baseline or a computation."""
        return self.ours is not None and self.ours.method is not None

    @property
    def claimed(self) -> str:
        """The ε that the paper claims."""
        return "–" if self.setting.baseline else epsilon_text(self.case.epsilon)

    @property
    def holds(self) -> str:
        """The ε that holds for the paper's mechanism: computed for its own method, "?" where it cites others."""
        if self.setting.baseline or math.isinf(self.case.epsilon):
            return "–"
        if self.setting.holds:
            return self.setting.holds
        if self.ours is not None and self.ours.holds is not None:
            return f"{self.ours.holds:.3g}"
        if self.setting.method.removesuffix("-published") != self.paper.key:
            return "?"
        if not self.paper.holds:
            return "none"
        known = self.paper.epsilon_that_holds(self.case.epsilon)
        return "?" if known is None else epsilon_text(known)

    @property
    def spent(self) -> str:
        """The ε on our ledgers."""
        if self.ours is None or not self.trained:
            return "–"
        return "none" if self.ours.spent is None else f"{self.ours.spent:g}"

    def metrics(self, entry: Entry) -> list[str]:
        """The metrics of the entry that the paper prints or that were measured."""
        names = list(entry.metrics)
        measured = {} if self.ours is None else self.ours.values
        if self.ours is not None and "FID" in names and "FID" not in measured:
            names.insert(names.index("FID") + 1, OWN_DISTANCE)
        return [name for name in names if self.printed.get(name) is not None or name in measured]


def compared(paper: Paper, entry: Entry, rows: Sequence[ResultRow]) -> list[Compared]:
    """Every setting in every case beside our rows; settings with rows of several units appear once for each."""
    found: list[Compared] = []
    for case, place, setting in entry.rows():
        printed = {metric: values[place] for metric, values in setting.paper.items()}
        own: list[Any] = [row for row in rows if _same(row, case, setting)] or [None]
        found += [Compared(paper, case, setting, printed, row) for row in own]
    return found


def _same(row: ResultRow, case: Case, setting: Setting) -> bool:
    claimed = case.epsilon if math.isfinite(case.epsilon) else None
    key = (row.setting, row.data.name, row.epsilon, row.data.subset)
    return key == (setting.name, case.data, claimed, case.records)


def epsilon_text(value: float) -> str:
    """An ε in at most six digits; ∞ where it is infinite."""
    return f"{value:g}" if math.isfinite(value) else "∞"
