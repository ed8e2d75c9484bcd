"""Compute a run again from its data and its key, and compare every noisy answer with the hash on the ledger.

Whoever may see data and key, such as an auditor at the custodian's, sees that the ledger's answers are those of this
program on this collection. Nothing is charged: the answers were paid for, and none of them leaves. What is found is
INTERNAL where it differs, since it then depends on the collection.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sfumato.methods.base import Method
from sfumato.methods.registry import find, load
from sfumato.methods.scored import ScoredMethod
from sfumato.privacy import Ledger, Plan, PrivateRecords, Progress, RunRefused, SubsampledGaussian
from sfumato.privacy.budget import budget_from_json
from sfumato.privacy.events import event_from_json
from sfumato.privacy.interfaces import KeptKey
from sfumato.privacy.mechanism import Query, described
from sfumato.release.card import Card
from sfumato.training.run import Run, RunOptions, train

_PACKAGES = ("sfumato", "torch")
Place = tuple[str, int, str]
"""Event, step and block of an answer."""


@dataclass(frozen=True)
class Recomputed:
    """What came of it.

    Attributes:
        answers: How many answers the ledger has of this run.
        compared: How many of them were computed again.
        different: How many of those have another hash, or are not on the ledger.
        first: Event, step and block of the first of them.
        weights: The distance of the weights from the released ones, divided by their norm; None if it was stopped
            before the end.
        remarks: What could make answers differ on this machine, and why not all of them were compared.
    """

    answers: int
    compared: int
    different: int
    first: Place | None
    weights: float | None
    remarks: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether every answer that was computed again is that of the ledger, and so are the weights."""
        return self.compared > 0 and self.different == 0 and not self.weights

    def to_json(self) -> dict[str, Any]:
        return {"agrees": self.agrees, **asdict(self)}


class _Enough(Exception):
    """All answers that can be compared, or that were asked for, have been."""


class _Comparison:
    """A tape that hands every answer on as it is."""

    def __init__(self, expected: Mapping[Place, str], until: int | None) -> None:
        self.expected, self.until = dict(expected), until
        self.compared = self.different = 0
        self.first: Place | None = None

    def exchange(self, query: Query, answer: Tensor, *, charges: int) -> Tensor:
        if self.until is not None and charges > self.until:
            raise _Enough
        place = (query.event, query.step, query.block)
        self.compared += 1
        if self.expected.pop(place, None) != described(query, answer)["sha256"]:
            self.different += 1
            self.first = self.first or place
        return answer


class _UpToResumption(_Comparison):
    """The answers before a resumption, after which the key was another one."""

    def exchange(self, query: Query, answer: Tensor, *, charges: int) -> Tensor:
        if not self.expected:
            raise _Enough
        return super().exchange(query, answer, charges=charges)


def recompute(
    folder: Path,
    private: PrivateRecords,
    *,
    ledger: Path | None = None,
    until: int | None = None,
    device: str | None = None,
    allow_custom: bool = False,
    progress: Progress | None = None,
) -> Recomputed:
    """Compute the run in ``folder`` again, up to step ``until``, counted over all of its events.

    Refuses a run without a kept key, and another collection than it was trained on.
    """
    run = Run(folder, ledger=ledger)
    release = load(run.release, allow_custom=allow_custom)
    book, card, facts = Ledger.read(run.ledger), release.card, run.facts()
    entry, keys = book.run_entry(card.run), run.kept_keys()
    if entry["method"] == "scored":
        raise RunRefused("the run chose among many trials, whose keys are not kept; 'sfumato train' can be recomputed")
    if not keys:
        raise RunRefused(
            "the key of the run was not kept, and without it nobody can draw its noise again. Train with --keep-key"
        )
    _check_collection(private, keys[0])
    resumed = keys[1].length if len(keys) > 1 else None
    expected = _answers(book, card.run, resumed)
    comparison = (_Comparison if resumed is None else _UpToResumption)(expected, until)
    options = RunOptions(
        device=device or card.device,
        max_images_per_unit=facts["max_images_per_unit"],
        progress=progress,
        internal=True,
    )
    plan = _plan(entry)
    with Ledger(None, book.limit) as own:
        weights: float | None = None
        try:
            method = _method(entry["method"], entry["parameters"])
            again = train(method, private, plan, own, options, tape=comparison, noise_key=bytes.fromhex(keys[0].key))
            weights = _distance(release.model.state_dict(), again.model.state_dict())
        except _Enough:
            pass
    return Recomputed(
        answers=len(_answers(book, card.run, None)),
        compared=comparison.compared,
        different=comparison.different,
        first=comparison.first,
        weights=weights,
        remarks=_remarks(card, options.device, resumed is not None),
    )


def _check_collection(private: PrivateRecords, kept: KeptKey) -> None:
    key, _, fingerprint = kept.collection.partition(" ")
    if private.fingerprint(bytes.fromhex(key)) != fingerprint:
        raise RunRefused(
            "this is not the collection that the run was trained on: other images, labels, persons, or another order"
        )


def _answers(ledger: Ledger, run: str, before: int | None) -> dict[Place, str]:
    """The hash of each answer, in the order in which they were given, up to this entry."""
    entries = ledger.entries()[:before]
    return {
        (one["event"], one["step"], one["block"]): one["sha256"]
        for entry in entries
        if entry.get("run") == run
        for one in entry.get("answers", ())
    }


def _plan(entry: Mapping[str, Any]) -> Plan:
    """The plan as the ledger has it: another machine could calibrate it to other last bits."""
    events = map(event_from_json, entry["plan"]["events"])
    return Plan(
        budget_from_json(entry["plan"]["budget"]),
        tuple(event for event in events if isinstance(event, SubsampledGaussian)),
    )


def _method(name: str, parameters: Mapping[str, Any]) -> Method:
    kind = ScoredMethod if name == ScoredMethod.name else find(name)
    return kind.configured(parameters)


def _distance(released: Mapping[str, Tensor], again: Mapping[str, Tensor]) -> float:
    pairs = [(one.double(), again[name].double()) for name, one in released.items()]
    norm = math.sqrt(sum(float(one.square().sum()) for one, _ in pairs))
    apart = math.sqrt(sum(float((one - other).square().sum()) for one, other in pairs))
    return apart / norm if norm else apart


def _remarks(card: Card, device: Any, resumed: bool) -> tuple[str, ...]:
    import importlib.metadata

    now = {name: importlib.metadata.version(name) for name in _PACKAGES}
    found = [
        f"{name} is {now[name]}, and the run had {card.versions[name]}"
        for name in _PACKAGES
        if now[name] != card.versions[name]
    ]
    if torch.device(device).type != card.device:
        found.append(f"the device is {device}, and the run had {card.device}")
    if resumed:
        found.append("the run was resumed, with another key: only what came before is compared")
    return (*found, f"on {platform.machine()} with {torch.get_num_threads()} threads")
