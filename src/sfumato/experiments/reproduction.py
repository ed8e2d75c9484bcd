"""An entry of a paper on this machine: its layout, what is computed for it, and its results beside those printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.experiments.datasets import DatasetLocator, datasets
from sfumato.experiments.entries import Case, Entry, Paper, Scale, Setting, Value, small
from sfumato.experiments.layout import OWN_DISTANCE, Evaluated, Layout, Line, trials_of
from sfumato.experiments.measures import PROTOCOL, as_measurements
from sfumato.experiments.results import ResultRow
from sfumato.experiments.runner import Task
from sfumato.experiments.spec import Conditions, EvaluationSpec, SamplingVariant, TrainingSpec, slug
from sfumato.experiments.training import Baselines
from sfumato.files import private_folder, write_json
from sfumato.methods import find
from sfumato.privacy import Block, Budget, Plan, PrivateRecords, SubsampledGaussian
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
