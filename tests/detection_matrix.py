"""The detection matrix: which check stops or finds which broken method, and which control methods pass all of them.

    python tests/detection_matrix.py [--pairs N] [--epsilon ε] [--delta δ] [--out FILE]

runs every broken and every control method and says which check catches which. Exit status 1 if one is unexpected.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from broken_methods import BROKEN_METHODS, CONTROL_METHODS, MISTAKES, ControlMethod
from sfumato.audit.noise import audit_noise
from sfumato.audit.replay import Replay, replay
from sfumato.audit.worst_case import worst_case_images
from sfumato.experiments.results import current_commit
from sfumato.files import write_json
from sfumato.privacy import Budget, PrivateRecords

CONTROL, MECHANISM, DIRECT, HELPER = "control", "mechanism", "direct", "in a helper"
REFUSED_BY_TORCH = ("the function was refused on random images", "the loss was refused on random images")
KEPT_APART = "kept apart"
"""The method runs, and because its loss sees one row its mistake moves no sum further than is paid."""
NOT_CAUGHT = "nothing"
MOST_MOVEMENT = 1.0 + 1e-4
OUTSIDE_OF_ROWS = ("private_choices", "raw_reads", "sizes_and_noise", "wrong_mechanism")
"""Modules of mistakes that are not about what a loss sees: that a sum moves by no more says nothing of them."""
DRAWS_BY_PLACE = "numpy.random in the loss"
"""In that module, and about what a loss sees: another number for each place in the batch."""


@dataclass(frozen=True)
class Detection:
    """One method, the check that stopped or found it, and what the check said."""

    mistake: str
    form: str
    caught_by: str
    reasons: tuple[str, ...]
    movement: tuple[float, float] | None = None
    """The largest movement of a sum in clip norms at learning rate 0 and at the default, if the method runs."""

    @property
    def expected(self) -> bool:
        """A broken method is caught, a control method is not."""
        return (self.caught_by == NOT_CAUGHT) == (self.form == CONTROL)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Detection:
        moved = values.get("movement")
        return cls(**{**values, "reasons": tuple(values["reasons"]), "movement": None if moved is None else (*moved,)})


def audited_methods() -> Iterator[tuple[str, str, type[ControlMethod]]]:
    """Mistake, form and class of every method in the matrix."""
    for kind in CONTROL_METHODS:
        yield (kind.__doc__ or "").strip(), CONTROL, kind
    for kind in BROKEN_METHODS:
        yield (kind.__doc__ or "").strip(), MECHANISM, kind
    for mistake in MISTAKES:
        yield mistake.name, DIRECT, mistake.direct
        yield mistake.name, HELPER, mistake.in_helper


def detect(
    mistake: str,
    form: str,
    kind: type[ControlMethod],
    *,
    budget: Budget,
    private: PrivateRecords | None = None,
    pairs: int = 12,
) -> Detection:
    """Apply the checks in the order in which a method meets them: one row, Curator, replay, noise audit."""
    private = worst_case_images(72, size=8) if private is None else private
    method = kind.small()
    found = replay(method, private, budget=budget, pairs=pairs)
    standing = replay(replace(method, learning_rate=0.0), private, budget=budget, pairs=pairs)
    movement = None if found.stopped else (_largest(standing), _largest(found))
    if not found.findings:  # a process of its own takes seconds to start, so it comes last
        found = replay(method, private, budget=budget, pairs=1, fresh_process=True)
    for finding in found.findings:
        if finding.rule == "refused":
            return Detection(mistake, form, _refused_by(finding.detail), (_short(finding.detail),))
    if found.findings:
        return Detection(mistake, form, "replay", found.rules, movement)
    failed = tuple(test.name for test in audit_noise(method, private, budget=budget).tests if test.failed)
    if failed:
        return Detection(mistake, form, "noise audit", failed, movement)
    outside = kind.__module__.rpartition(".")[2] in OUTSIDE_OF_ROWS and mistake != DRAWS_BY_PLACE
    in_rows = form != CONTROL and not outside
    apart = in_rows and movement is not None and max(movement) <= MOST_MOVEMENT
    return Detection(mistake, form, KEPT_APART if apart else NOT_CAUGHT, (), movement)


def _largest(found: Replay) -> float:
    return round(max(found.movement.values(), default=0.0), 6)


def detection_matrix(*, budget: Budget, pairs: int = 12) -> Iterator[Detection]:
    """Every control method and every broken method, as soon as each is done."""
    count = sum(1 for _ in audited_methods())
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(partial(_detected, budget=budget, pairs=pairs), range(count))


def _detected(number: int, *, budget: Budget, pairs: int) -> Detection:
    torch.set_num_threads(1)
    mistake, form, kind = list(audited_methods())[number]
    return detect(mistake, form, kind, budget=budget, pairs=pairs)


def _refused_by(detail: str) -> str:
    if any(text in detail for text in REFUSED_BY_TORCH):
        return "torch.func.vmap"
    return "isolation" if detail.startswith("UnsupportedModel") else "Curator"


def _short(detail: str) -> str:
    """The reason of a refusal, without its advice."""
    text = detail.split(": ", 1)[1]
    return text.split(". ")[0].split(" (")[0]


def markdown_table(detections: list[Detection]) -> str:
    """The matrix as a table, one row for each mistake."""
    lines = ["| mistake | form | caught by | because |", "|---|---|---|---|"]
    for one in detections:
        lines.append(f"| {one.mistake} | {one.form} | {one.caught_by} | {'; '.join(one.reasons)} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="neighbours for each method that trains")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--out", type=Path, help="also write the matrix to this JSON file")
    given = parser.parse_args(words)
    found = []
    for one in detection_matrix(budget=Budget(given.epsilon, given.delta), pairs=given.pairs):
        found.append(one)
        print(f"{one.mistake} ({one.form}): {'; '.join((one.caught_by, *one.reasons))}", flush=True)
    unexpected = [f"{one.mistake} ({one.form})" for one in found if not one.expected]
    print(f"unexpected: {', '.join(unexpected) or 'none'}")
    if given.out is not None:
        options = f"--pairs {given.pairs} --epsilon {given.epsilon:g} --delta {given.delta:g}"
        made = {"command": f"python tests/detection_matrix.py {options}", "commit": current_commit()}
        methods = [one.to_json() for one in found]
        write_json(
            given.out, {**made, "pairs": given.pairs, "methods": methods, "unexpected": unexpected}, private=False
        )
    return int(bool(unexpected))


if __name__ == "__main__":
    sys.exit(main())
