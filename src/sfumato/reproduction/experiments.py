"""Entries that are no training on a collection of images: each a function of a setting and a case."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato.privacy import Block, Budget, NoisySums, Plan
from sfumato.privacy.accounting import epsilon
from sfumato.report.folder import write_whole
from sfumato.reproduction.measures import measured
from sfumato.reproduction.specification import Case, Setting
from sfumato.trial import slug


@dataclass(frozen=True)
class Outcome:
    """Numbers by metric, and the ε that holds for them; ``None`` is none at all."""

    values: Mapping[str, float]
    epsilon: float | None
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Experiment:
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

    def do(self) -> None:
        found = EXPERIMENTS[self.name](self.setting, self.case, self.scale)
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        guarantee = {"guarantee": "no guarantee" if found.epsilon is None else "certified", "epsilon": found.epsilon}
        content = {
            "measurements": measured(dict(found.values)),
            "guarantee": guarantee,
            "parameters": dict(found.parameters),
        }
        write_whole(self.file, json.dumps(content, indent=2, ensure_ascii=False) + "\n", private=True)


def sensitivity(setting: Setting, case: Case, scale: str) -> Outcome:
    """How far one record moves the sum that PRIVAE's table 1 is about, on the pair of batches that moves it most; and
    the ε which the noise of the table really gives for it.

    A term of the whole batch may turn around when a record joins. Here it does: ψ = +u with the record, −u without.
    """
    given = dict(setting.parameters)
    batch, groups = int(given["batch"]), int(given["groups"])
    direction = torch.eye(8, dtype=torch.float64)[0]
    worlds = [_aggregated(given, batch, groups, direction, present) for present in (True, False)]
    moved = float((worlds[0] - worlds[1]).norm())
    rate, steps = batch / float(given["records"]), int(given["steps"])
    plan = Plan.calibrated((NoisySums("train", (Block("sum"),), rate=rate, steps=steps),), Budget(case.epsilon, 1e-5))
    sigma = plan.events[0].noise_multiplier
    # The table's noise, in units of what really moves.
    really = sigma * float(given["claimed"]) / moved
    cost = epsilon((NoisySums("train", (Block("sum", really),), rate=rate, steps=steps),), 1e-5)
    return Outcome({"sensitivity of the mean": moved, "noise multiplier that is left": really}, cost, given)


def _aggregated(given: Mapping[str, Any], batch: int, groups: int, direction: Tensor, present: bool) -> Tensor:
    """The mean that is released, before its noise, with one record in the batch or without it."""
    size = batch if present else batch - 1
    turned = direction if present else -direction
    clip, clip_groups = float(given["clip"]), float(given.get("clip_groups", 0.0))
    match given["aggregation"]:
        case "micro":  # each record's clipped share holds the term of the whole batch
            return size * clip * turned / batch
        case "batch":  # the whole batch's one vector is clipped
            return clip * turned
        case "term-wise":  # one record's own vector, and the one group it is in
            return (clip / batch + clip_groups / groups) * direction if present else -clip_groups / groups * direction
        case other:
            raise ValueError(f"aggregation is micro, batch or term-wise, not {other!r}")


EXPERIMENTS: dict[str, Callable[[Setting, Case, str], Outcome]] = {"sensitivity": sensitivity}
