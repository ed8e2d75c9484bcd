"""What papers compute without training a registered method on images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.experiments.entries import Case, Setting, small
from sfumato.experiments.measures import as_measurements
from sfumato.experiments.spec import slug
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
