"""Neighbour replay: run a method on D and on D without one unit, and compare what must not depend on it.

The second run is given the noisy answers of the first. Whatever a sound method computes from them must then be equal in
both: the queries with their public arguments, the ledger, the release to the last bit. Only the exact sums behind the
noise may move, and by no more than the ledger has paid for.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from sfumato.methods.base import Method
from sfumato.privacy import AnyBudget, Event, Ledger, PrivateRecords, Randomness, SubsampledGaussian
from sfumato.privacy.events import RawAccess
from sfumato.privacy.gradients import UnsupportedModel
from sfumato.privacy.mechanism import Query
from sfumato.privacy.sampling import Units
from sfumato.release.card import Card

TOLERANCE = 1e-6  # of the declared movement: float64 rounding
_ALPHA = 1e-9  # of the test that the noise is as large as it says


@dataclass(frozen=True)
class Finding:
    """A broken rule, where it showed, and for which unit was taken out."""

    rule: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.where}): {self.detail}"


@dataclass(frozen=True)
class Taped:
    """One question and its answer, as the first run saw them."""

    question: Query
    answer: Tensor
    charges: int


@dataclass
class Replay:
    """What came of it. ``movement`` is, for each event and block, the largest movement ÷ what was paid (or claimed)."""

    pairs: int = 0
    findings: list[Finding] = field(default_factory=list)
    movement: dict[str, float] = field(default_factory=dict)

    @property
    def flagged(self) -> bool:
        return bool(self.findings)

    def vacuous(self, least: float = 0.9) -> list[str]:
        """Blocks that no pair moved near their bound: the replay shows nothing about these."""
        return sorted(name for name, value in self.movement.items() if value < least)

    def add(self, rule: str, where: str, detail: str) -> None:
        finding = Finding(rule, where, detail)
        if finding not in self.findings:
            self.findings.append(finding)

    def add_all(self, other: Replay) -> None:
        """Take over what another replay found."""
        self.pairs += other.pairs
        for finding in other.findings:
            self.add(finding.rule, finding.where, finding.detail)
        for name, value in other.movement.items():
            self.movement[name] = max(value, self.movement.get(name, 0.0))

    @property
    def stopped(self) -> bool:
        """The method did not run at all, so further pairs would show nothing."""
        return any(finding.rule in ("refused", "vacuous") for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "flagged": self.flagged,
            "findings": [vars(finding) for finding in self.findings],
            "movement": self.movement,
            "vacuous": self.vacuous(),
        }


class _Recorder:
    def __init__(self) -> None:
        self.taped: list[Taped] = []

    def exchange(self, question: Query, answer: Tensor, *, charges: int) -> Tensor:
        parts = tuple(replace(part, total=part.total.detach().clone()) for part in question.sums)
        self.taped.append(Taped(replace(question, sums=parts), answer.clone(), charges))
        return answer


class _Player:
    """Hands out the recorded answers and measures how far the sums behind them moved."""

    def __init__(self, taped: Sequence[Taped], noise: Mapping[tuple[str, str], float], result: Replay) -> None:
        self.taped, self.noise, self.result = taped, noise, result
        self.asked = 0

    def exchange(self, question: Query, answer: Tensor, *, charges: int) -> Tensor:
        where = f"{question.event} / {question.block}"
        if self.asked >= len(self.taped):
            self.result.add("same questions", where, "the neighbour's run asks more")
            return answer
        first = self.taped[self.asked]
        self.asked += 1
        if _public(question) != _public(first.question):
            self.result.add("same questions", where, "event, step, block or public arguments differ")
            if answer.shape != first.answer.shape:
                return answer
        ratio = _movement(question, first.question, self.noise.get((question.event, question.block)))
        self.result.movement[where] = max(self.result.movement.get(where, 0.0), ratio)
        if ratio > 1 + TOLERANCE:
            kind = "claimed" if question.claimed else "paid for"
            self.result.add("movement", where, f"moved by more than was {kind}")
        return first.answer


def _public(question: Query) -> tuple[Any, ...]:
    parts = tuple(
        (part.name, tuple(part.total.shape), part.clip_norm, part.standard_deviation) for part in question.sums
    )
    return (question.event, question.step, question.block, dict(question.public), question.claimed, parts)


def _movement(second: Query, first: Query, noise: float | None) -> float:
    """Σ over parts of (movement ÷ noise)², against 1/σ of the ledger's entry; for a claim, against the claim."""
    if [p.total.shape for p in second.sums] != [p.total.shape for p in first.sums]:
        return math.inf
    pairs = list(zip(second.sums, first.sums, strict=True))
    if second.claimed:
        return max(float((a.total - b.total).norm()) / a.clip_norm for a, b in pairs)
    if noise is None:
        return math.inf
    return noise * math.sqrt(sum((float((a.total - b.total).norm()) / a.standard_deviation) ** 2 for a, b in pairs))


def without(private: PrivateRecords, unit: int) -> PrivateRecords:
    """The same collection with one unit masked: no other unit's coin or draw changes."""
    neighbour = copy.copy(private)
    neighbour._masked = private._masked | {unit}
    return neighbour


def participants(method: Method, private: PrivateRecords, budget: AnyBudget, seed: int) -> list[int]:
    """Units whose coin comes up at least once in every planned event of a run with this seed."""
    randomness, units = Randomness(seed), Units(private, budget.unit, max_images=1)
    present = set(units.sample(randomness, 1.0, "all").tolist())
    for event in method.plan(budget).events:
        drawn: set[int] = set()
        for index in range(event.steps):
            if event.shards is None:
                drawn |= set(units.sample(randomness, event.sampling_rate, event.name, index).tolist())
            else:
                chosen = randomness.coins(event.shards, event.sampling_rate, event.name, index).numpy()
                drawn |= set(np.flatnonzero(np.isin(units.shard_of(randomness, event.shards), chosen)).tolist())
        present &= drawn
    return sorted(present)


def replay(
    method: Method,
    private: PrivateRecords,
    *,
    budget: AnyBudget,
    pairs: int = 40,
    seed: int = 0,
    units: Sequence[int] | None = None,
    max_images_per_unit: int = 4,
) -> Replay:
    """Replay ``pairs`` neighbours, each without one of ``units`` (by default those whose coins come up)."""
    result = Replay()
    with _double_precision():
        recorder = _Recorder()
        options: dict[str, Any] = {"seed": seed, "device": "cpu", "max_images_per_unit": max_images_per_unit}
        with Ledger(None, budget) as ledger:
            try:
                release = method.fit(private, budget, ledger, tape=recorder, **options)
            except (LookupError, RuntimeError, PermissionError, UnsupportedModel) as error:
                result.add("refused", "first run", f"{type(error).__name__}: {error}")
                return result
            events = ledger.events()
        _check_charges(recorder.taped, events, result)
        _check_noise(recorder.taped, result)
        noise = {
            (e.name, b.name): b.noise_multiplier / e.sensitivity(e.relation) for e in _sums(events) for b in e.blocks
        }
        chosen = participants(method, private, budget, seed) if units is None else list(units)
        if not chosen:
            result.add("vacuous", "coins", "no unit's coin comes up in every event; choose another seed or rate")
        tensors, card = release.model.state_dict(), _comparable(release.card)
        for unit in chosen[:pairs]:
            player = _Player(recorder.taped, noise, result)
            with Ledger(None, budget) as ledger:
                try:
                    other = method.fit(without(private, unit), budget, ledger, tape=player, **options)
                except Exception as error:
                    result.add("same questions", "neighbour's run", f"raised {type(error).__name__}")
                    continue
                finally:
                    result.pairs += 1
                if ledger.events() != events:
                    result.add("same ledger", "events", "the two ledgers differ")
            if player.asked < len(recorder.taped):
                result.add("same questions", "end", "the neighbour's run asks less")
            for name, tensor in other.model.state_dict().items():
                if not torch.equal(tensor, tensors[name]):
                    result.add("same release", name, "a released tensor depends on the data outside any answer")
            if _comparable(other.card) != card:
                result.add("same release", "card", "the card depends on the data outside any answer")
    return result


def _sums(events: Sequence[Event]) -> Iterator[SubsampledGaussian]:
    return (event for event in events if not isinstance(event, RawAccess))


def _comparable(card: Card) -> dict[str, Any]:
    """Without times and what is hashed over times."""
    return {key: value for key, value in card.to_json().items() if key not in ("made", "run", "ledger_head")}


def _check_charges(taped: Sequence[Taped], events: Sequence[Event], result: Replay) -> None:
    """Each step is on the ledger before its first answer, and its last step is as well."""
    steps: set[tuple[str, int]] = set()
    for one in taped:
        if one.question.claimed:
            continue
        steps.add((one.question.event, one.question.step))
        if one.charges < len(steps):
            result.add("charge first", one.question.event, "noise was drawn before the ledger was charged")
    paid = sum(event.steps for event in _sums(events))
    if paid < len(steps):
        result.add("charge first", "ledger", "fewer steps on the ledger than were answered")


def _check_noise(taped: Sequence[Taped], result: Replay) -> None:
    """Pooled over the run, the noise has the deviation each question names (a chi-square test)."""
    total, count = 0.0, 0
    for one in taped:
        sizes = [part.total.numel() for part in one.question.sums]
        for part, answer in zip(one.question.sums, torch.split(one.answer, sizes), strict=True):
            total += float(((answer - part.total.flatten()) / part.standard_deviation).square().sum())
            count += part.total.numel()
    if count:
        chance = 2 * min(stats.chi2.cdf(total, count), stats.chi2.sf(total, count))
        if not chance > _ALPHA:
            result.add("noise", "all answers", "the noise drawn is not as large as the questions say")


@contextlib.contextmanager
def _double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
