"""Tapes of neighbour replay: record the queries and answers of one run, and play them back to another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from sfumato.privacy.mechanism import Query

TOLERANCE = 1e-6  # of the declared movement: float64 rounding


@dataclass(frozen=True)
class Finding:
    """A broken rule, and where it showed."""

    rule: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.where}): {self.detail}"


@dataclass
class Replay:
    """The result. ``movement`` is, for each event and block, the largest movement ÷ what was paid for (or claimed)."""

    pairs: int = 0
    findings: list[Finding] = field(default_factory=list)
    movement: dict[str, float] = field(default_factory=dict)

    @property
    def flagged(self) -> bool:
        return bool(self.findings)

    @property
    def rules(self) -> tuple[str, ...]:
        """The broken rules, each once."""
        return tuple(sorted({finding.rule for finding in self.findings}))

    def vacuous(self, least: float = 0.9) -> list[str]:
        """Blocks that no pair moved near their bound: the replay shows nothing about these."""
        return sorted(name for name, value in self.movement.items() if value < least)

    def add(self, rule: str, where: str, detail: str) -> None:
        """Note a finding, once."""
        finding = Finding(rule, where, detail)
        if finding not in self.findings:
            self.findings.append(finding)

    def add_all(self, other: Replay) -> None:
        """Take over the findings and movements of another replay."""
        self.pairs += other.pairs
        for finding in other.findings:
            self.add(finding.rule, finding.where, finding.detail)
        for name, value in other.movement.items():
            self.movement[name] = max(value, self.movement.get(name, 0.0))

    @property
    def stopped(self) -> bool:
        """The method did not run at all, so further pairs would show nothing."""
        return any(finding.rule in ("refused", "exception", "vacuous") for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "pairs": self.pairs,
            "flagged": self.flagged,
            "findings": [vars(finding) for finding in self.findings],
            "movement": self.movement,
            "vacuous": self.vacuous(),
        }


@dataclass(frozen=True)
class Taped:
    """One query and its answer, as the first run saw them."""

    query: Query
    answer: Tensor
    charges: int


class Recorder:
    """Keeps every query with its answer."""

    def __init__(self) -> None:
        self.taped: list[Taped] = []

    def exchange(self, query: Query, answer: Tensor, *, charges: int) -> Tensor:
        sums = tuple(replace(one, total=one.total.detach().clone()) for one in query.sums)
        self.taped.append(Taped(replace(query, sums=sums), answer.clone(), charges))
        return answer


class Player:
    """Returns the recorded answers and measures how far the sums behind them moved."""

    def __init__(self, taped: Sequence[Taped], noise: Mapping[tuple[str, str], float], result: Replay) -> None:
        self.taped, self.noise, self.result = taped, noise, result
        self.asked = 0

    def exchange(self, query: Query, answer: Tensor, *, charges: int) -> Tensor:
        where = f"{query.event} / {query.block}"
        if self.asked >= len(self.taped):
            self.result.add("same queries", where, "the neighbour's run has more queries")
            return answer
        first = self.taped[self.asked]
        self.asked += 1
        if _public(query) != _public(first.query):
            self.result.add("same queries", where, "event, step, block or public arguments differ")
            if answer.shape != first.answer.shape:
                return answer
        ratio = _movement(query, first.query, self.noise.get((query.event, query.block)))
        self.result.movement[where] = max(self.result.movement.get(where, 0.0), ratio)
        if ratio > 1 + TOLERANCE:
            kind = "claimed" if query.claimed else "paid for"
            self.result.add("movement", where, f"moved by more than was {kind}")
        return first.answer


def _public(query: Query) -> tuple[Any, ...]:
    sums = tuple((one.name, tuple(one.total.shape), one.clip_norm, one.standard_deviation) for one in query.sums)
    return (query.event, query.step, query.block, dict(query.public), query.claimed, sums)


def _movement(second: Query, first: Query, noise: float | None) -> float:
    """The movement in units of the noise, against 1/σ of the ledger's entry; for a claim, against the claim."""
    if [one.total.shape for one in second.sums] != [one.total.shape for one in first.sums]:
        return math.inf
    pairs = list(zip(second.sums, first.sums, strict=True))
    if second.claimed:
        return max(float((a.total - b.total).norm()) / a.clip_norm for a, b in pairs)
    if noise is None:
        return math.inf
    return noise * math.sqrt(sum((float((a.total - b.total).norm()) / a.standard_deviation) ** 2 for a, b in pairs))
