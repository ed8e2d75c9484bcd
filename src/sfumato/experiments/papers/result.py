"""An entry on this machine: its trainings, and their results beside the numbers that the paper prints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.experiments.datasets import DatasetLocator, LocatedDataset, datasets
from sfumato.experiments.gather import OWN_DISTANCE, PROTOCOL, Evaluated, as_measurements, result_row
from sfumato.experiments.papers.entries import Case, Entry, Paper, Scale, Setting, Value, small
from sfumato.experiments.results import DataUsed, Measured, ResultRow, ResultSet, log_hash, provenance
from sfumato.experiments.runner import Task
from sfumato.experiments.spec import Conditions, EvaluationSpec, SamplingVariant, TrainingSpec, slug
from sfumato.experiments.training import Baselines, Trial
from sfumato.files import private_folder, write_json
from sfumato.privacy import Block, Budget, Plan, SubsampledGaussian
from sfumato.privacy.accounting import epsilon


@dataclass(frozen=True)
class Outcome:
    """Values by metric; the ε of a training of ours, if there was one; the ε that holds for the paper's mechanism."""

    values: Mapping[str, float]
    parameters: Mapping[str, Any]
    epsilon: float | None = None
    holds: float | None = None


@dataclass(frozen=True)
class Computation:
    """One repetition, with its outcome in a file."""

    name: str
    setting: Setting
    case: Case
    scale: str
    number: int
    out: Path

    def __str__(self) -> str:
        return f"{self.setting.name}, ε {self.case.epsilon:g}, run {self.number}"

    @property
    def file(self) -> Path:
        return self.out / slug(self.setting.name) / f"epsilon-{self.case.epsilon:g}" / f"run-{self.number}.json"

    def finished(self) -> bool:
        return self.file.exists()

    def run(self) -> None:
        found = COMPUTATIONS[self.name](self.setting, self.case, self.scale)
        private_folder(self.file.parent)
        content = {
            "measurements": as_measurements(dict(found.values)),
            "guarantee": {"epsilon": found.epsilon},
            "holds": found.holds,
            "parameters": dict(found.parameters),
        }
        write_json(self.file, content, private=True)


def sensitivity(setting: Setting, case: Case, scale: str) -> Outcome:
    """The sensitivity of the mean in PRIVAE's table 1, and the ε that holds for the noise of the table.

    Measured on the worst pair of batches: a term of several records may change its sign when one of them is removed,
    and here it does. The noise is that of an exact accountant for the claimed ε, in the table's units.
    """
    given = dict(setting.parameters)
    terms = _mean_terms(given)
    rate, steps = given["batch"] / given["records"], int(given["steps"])
    plan = Plan.calibrated(
        (SubsampledGaussian("train", (Block("mean"),), sampling_rate=rate, steps=steps),), Budget(case.epsilon, 1e-5)
    )
    sigma = plan.events[0].noise_multiplier
    # Terms that share a batch are one event; a term's multiplier is its noise in units of its sensitivity.
    blocks = tuple(Block(term.name, sigma * term.noise / term.moved) for term in terms)
    event = SubsampledGaussian("train", blocks, sampling_rate=rate, steps=steps)
    moved = sum(term.moved for term in terms)
    values = {"moves the mean by, × 10⁻⁴": 1e4 * moved, "noise multiplier": event.noise_multiplier}
    return Outcome(values, given, holds=epsilon((event,), 1e-5))


@dataclass(frozen=True)
class _Term:
    """A noisy part of a mean: its noise in units of σ, and its measured sensitivity to one record."""

    name: str
    noise: float
    moved: float


def _mean_terms(given: Mapping[str, Any]) -> list[_Term]:
    batch, groups, clip = int(given["batch"]), int(given["groups"]), float(given["clip"])
    everyone = torch.arange(batch)
    without = everyone[:-1]

    def difference(mean: Callable[[Tensor], Tensor]) -> float:
        return float((mean(everyone) - mean(without)).norm())

    def turning(rows: Tensor) -> Tensor:
        """ψ: the joint term of several records; its sign depends on whether the last record is present."""
        sign = 1.0 if batch - 1 in rows else -1.0
        return sign * torch.eye(8, dtype=torch.float64)[0]

    match given["aggregation"]:
        case "micro":  # each record's clipped contribution contains the term of the whole batch
            return [_Term("all", clip, difference(lambda rows: clip * len(rows) * turning(rows) / batch))]
        case "batch":  # one clipped vector for the whole batch
            return [_Term("all", clip, difference(lambda rows: clip * turning(rows)))]
        case "term-wise":  # one vector per record and one per group; the group of the last record changes its sign
            kappa, group_clip = float(given["kappa"]), float(given["group_clip"])
            own = difference(lambda rows: clip * turning(everyone) * len(rows) / batch)
            shared = difference(lambda rows: group_clip * turning(rows[groups - 1 :: groups]) / groups)
            return [
                _Term("own", kappa * clip / batch, own),
                _Term("groups", kappa * group_clip / groups, shared),
            ]
        case other:
            raise ValueError(f"aggregation is micro, batch or term-wise, not {other!r}")


def pinwheel(setting: Setting, case: Case, scale: str) -> Outcome:
    """PRIVAE on 400 points in four spiral arms: agreement of the codes with the prior's four clusters."""
    from sfumato.methods import find
    from sfumato.privacy import PrivateRecords

    points, arms = _spirals(400)
    parameters = {**setting.trained_on(case), **(dict(small().most[setting.method]) if scale == "small" else {})}
    release = (
        find(setting.method)
        .configured(parameters)
        .fit(PrivateRecords(points), Budget(setting.budget(case.epsilon), 1e-5), device="cpu")
    )
    images, labels = torch.from_numpy(points), torch.zeros(len(points), dtype=torch.int64)
    model: Any = release.model
    with torch.no_grad():
        codes = model.encode(images, labels).mean
        rebuilt = torch.sigmoid(model.decode(codes, labels))
    error = float((rebuilt - images).square().flatten(1).sum(1).mean().sqrt())
    method: Any = release.method
    nearest = torch.cdist(codes, method.code_prior().corners.to(codes)).argmin(1)
    values = {"arms found in the codes": _agreement(nearest.numpy(), arms), "error of reconstruction": error}
    return Outcome(values, dict(release.card.parameters), epsilon=release.card.epsilon)


def _spirals(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of four spiral arms in the unit square, as images of one by two pixels, and their arms."""
    random = np.random.default_rng(0)
    arms = np.arange(count) % 4
    radius = np.clip(1.0 + 0.3 * random.standard_normal(count), 0.1, 2.0)
    angle = arms * math.pi / 2 + (radius - 1.0) + 0.1 * random.standard_normal(count) / radius
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return (points / 4.0 + 0.5).astype(np.float32).reshape(count, 1, 1, 2), arms


def _agreement(found: np.ndarray, arms: np.ndarray) -> float:
    """Adjusted Rand index: 1 is the same division, 0 is chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(arms, found))


COMPUTATIONS: dict[str, Callable[[Setting, Case, str], Outcome]] = {"sensitivity": sensitivity, "pinwheel": pinwheel}


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
) -> EntryLayout:
    """A dataset that is not available is an error; a setting without an implementation is a row without numbers."""
    if entry.computation:
        return _computations(entry, scale, out)
    evaluation = EvaluationSpec(
        protocol=entry.protocol,
        images=scale.images,
        feature_images=scale.feature_images,
        inception_trainings=None if scale.inception else 0,
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
