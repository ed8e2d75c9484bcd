"""An entry of a paper on this machine: its layout, and its results beside the numbers that the paper prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.experiments.computed import Computation
from sfumato.experiments.datasets import DatasetLocator, datasets
from sfumato.experiments.entries import Case, Entry, Paper, Scale, Setting, Value
from sfumato.experiments.layout import OWN_DISTANCE, Evaluated, Layout, Line, trials_of
from sfumato.experiments.measures import PROTOCOL
from sfumato.experiments.results import ResultRow
from sfumato.experiments.runner import Task
from sfumato.experiments.spec import Conditions, EvaluationSpec, SamplingVariant, TrainingSpec
from sfumato.experiments.training import Baselines


def entry_name(paper: Paper, entry: Entry) -> str:
    """The name of an entry in commands and result files."""
    return f"{paper.key} {entry.name}"


def lay_out_entry(
    paper: Paper, entry: Entry, *, locator: DatasetLocator, scale: Scale, out: Path, device: str
) -> Layout:
    """A dataset that is not available is an error; a setting without an implementation is a line without numbers."""
    lines: list[Line] = []
    tasks: dict[Path, Task] = {}
    names: dict[tuple[Path, str, float], str] = {}
    for case, _, setting in entry.rows():
        line = Line(setting.name, case.data, case.epsilon, case.records)
        if entry.computation and not setting.missing:
            runs = [
                Computation(entry.computation, setting, case, scale.name, run, out) for run in range(scale.trainings)
            ]
            tasks |= {run.file: run for run in runs}
            files = tuple(run.file for run in runs)
            line = replace(line, computation=entry.computation, method=setting.method, files=files)
        elif not setting.missing and (setting.method or setting.baseline):
            evaluated = _evaluated(entry, case, setting, names, locator=locator, scale=scale, out=out, device=device)
            line = replace(line, evaluated=evaluated)
            if PROTOCOL in entry.measures and (scale.name == "full" or setting.baseline):
                tasks.setdefault(evaluated.conditions.out, Baselines(evaluated.conditions))
        lines.append(line)
    measures = tuple(name for name in entry.measures if name != PROTOCOL)
    trials = trials_of(lines, measures=measures, by_protocol=PROTOCOL in entry.measures)
    return Layout(entry_name(paper, entry), entry.title, scale.name, tuple(lines), (*tasks.values(), *trials))


def _evaluated(
    entry: Entry,
    case: Case,
    setting: Setting,
    names: dict[tuple[Path, str, float], str],
    *,
    locator: DatasetLocator,
    scale: Scale,
    out: Path,
    device: str,
) -> Evaluated:
    """The trainings of a setting. Those that differ only in sampling share one, named after the first of them."""
    evaluation = EvaluationSpec(
        protocol=entry.protocol,
        images=scale.images,
        feature_images=scale.feature_images,
        inception_trainings=None if scale.inception else 0,
    )
    located = locator.require(case.data)
    subset = "" if case.records is None else f"-{case.records}"
    data = located.spec(records=scale.records_of(case), test_records=scale.records)
    conditions = Conditions(data, (evaluation,), device, out / f"{located.dataset.name}{subset}", entry.delta)
    if setting.baseline:
        return Evaluated(conditions, (), baseline=setting.baseline)
    public = {"public": str(locator.require(setting.public).train)} if setting.public else {}
    here = replace(case, data=located.dataset.name)
    method, epsilon = scale.method(setting, here, **public), setting.budget(case.epsilon)
    name = names.setdefault((conditions.out, repr(method), epsilon), setting.name)
    sampling = setting.sampled_on(here)
    variant = SamplingVariant(setting.name, sampling) if sampling else SamplingVariant()
    trainings = tuple(TrainingSpec(method, epsilon, number, name) for number in range(scale.trainings))
    return Evaluated(conditions, trainings, variant)


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
        if self.ours is None or not self.trained:
            return "–"
        return "none" if self.ours.spent is None else f"{self.ours.spent:g}"

    def metrics(self, entry: Entry) -> list[str]:
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
