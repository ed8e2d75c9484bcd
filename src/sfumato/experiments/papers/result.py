"""An entry's result: gathered from the files of its trainings, and joined with the numbers that the paper prints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfumato.experiments.datasets import datasets
from sfumato.experiments.gather import OWN_DISTANCE, result_row
from sfumato.experiments.papers.entries import Case, Entry, Paper, Setting, Value
from sfumato.experiments.papers.layout import EntryRow, Layout
from sfumato.experiments.papers.scale import Scale
from sfumato.experiments.results import DataUsed, Measured, ResultRow, ResultSet, log_hash, provenance


def entry_name(paper: Paper, entry: Entry) -> str:
    """The name of an entry in commands and result files."""
    return f"{paper.key} {entry.name}"


def gather(
    paper: Paper, entry: Entry, layout: Layout, *, scale: Scale, device: str, failed: Mapping[str, str]
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
