"""What was released, in public terms: immutable facts that the ledger stores and the accountant reads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar


class Relation(StrEnum):
    """Which collections count as neighbours."""

    ADD_OR_REMOVE = "add or remove one unit"
    REPLACE = "add, remove or replace one unit"


@dataclass(frozen=True)
class Block:
    """One noisy sum inside a step.

    ``noise_multiplier`` is the noise's standard deviation ÷ the clip norm, on the sum. ``fixed`` noise is chosen by
    the method; calibration scales the rest.
    """

    name: str
    noise_multiplier: float = 1.0
    fixed: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ValueError(f"block {self.name!r}: the noise multiplier must be positive, not {self.noise_multiplier}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Block:
        # "moves" belongs to the file formats of versions 0.1.0 and 0.2.0.
        return cls(data["name"], data["noise_multiplier"] / data.get("moves", 1.0), data["fixed"])


@dataclass(frozen=True)
class SubsampledGaussian:
    """``steps`` rounds of Poisson sampling at ``sampling_rate``, each answering every block with a noisy clipped sum.

    A sampling rate of 1 queries every unit. With ``shards``, sampling and clipping apply to that many shards of units:
    one unit can replace its shard's vector by any other of the ball, so that the whole composition is accounted for
    under replace-one.
    """

    name: str
    blocks: tuple[Block, ...]
    sampling_rate: float = 1.0
    steps: int = 1
    shards: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise ValueError(f"{self.name!r}: the sampling rate must lie in (0, 1], not {self.sampling_rate}")
        if self.steps < 1 or self.steps != int(self.steps):
            raise ValueError(f"{self.name!r}: the number of steps must be a whole number from 1 on, not {self.steps}")
        if self.shards is not None and self.shards < 1:
            raise ValueError(f"{self.name!r}: there must be at least one shard, not {self.shards}")
        if not self.blocks or len({block.name for block in self.blocks}) != len(self.blocks):
            raise ValueError(f"{self.name!r}: a step needs at least one block, and each a name of its own")

    @property
    def noise_multiplier(self) -> float:
        """σ_eff: blocks that share a batch act like one Gaussian.

        Guarantee. 1/σ_eff² = Σ 1/σ_j²: a step is no more revealing than one sum with this noise multiplier.
        """
        return sum((1.0 / block.noise_multiplier) ** 2 for block in self.blocks) ** -0.5

    @property
    def relation(self) -> Relation:
        """The neighbouring relation that the event needs: a unit replaces the vector of its shard by another."""
        return Relation.ADD_OR_REMOVE if self.shards is None else Relation.REPLACE

    def sensitivity(self, relation: Relation) -> float:
        """The largest movement of a block's sum between neighbours, in units of its clip norm.

        Guarantee. Adding or removing moves the sum by one vector of the ball, replacing by the difference of two.
        """
        return 1.0 if relation is Relation.ADD_OR_REMOVE else 2.0

    def scaled(self, factor: float) -> SubsampledGaussian:
        """The same with every noise that is not fixed multiplied by ``factor``."""
        blocks = (b if b.fixed else replace(b, noise_multiplier=b.noise_multiplier * factor) for b in self.blocks)
        return replace(self, blocks=tuple(blocks))

    def times(self, steps: int) -> SubsampledGaussian:
        return replace(self, steps=steps)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "noisy sums",
            "name": self.name,
            "blocks": [block.to_json() for block in self.blocks],
            "scheme": "all" if self.sampling_rate == 1 else "poisson",
            "rate": self.sampling_rate,
            "steps": self.steps,
            "shards": self.shards,
            "noise_multiplier": self.noise_multiplier,
            "relation": self.relation,
            "sensitivity": self.sensitivity(self.relation),
        }


@dataclass(frozen=True)
class RawAccess:
    """The records themselves were handed out: ε = ∞ from here on."""

    name: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"kind": "raw access", **asdict(self)}


@dataclass(frozen=True)
class PrivateSelection:
    """A random number of trials, of which the one with the best noisy score is released (``selection.py``).

    ``candidates`` holds the queries of a trial for each candidate. ``shape`` and ``gamma`` are η and γ of the truncated
    negative binomial distribution of the number of trials.
    """

    name: str
    candidates: tuple[tuple[SubsampledGaussian, ...], ...]
    shape: float
    gamma: float
    steps: ClassVar[int] = 1
    relation: ClassVar[Relation] = Relation.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        if not self.candidates or any(not events for events in self.candidates):
            raise ValueError("a selection needs at least one candidate, and each at least one query")
        if any(event.relation is not self.relation for events in self.candidates for event in events):
            raise ValueError("a selection is accounted for under adding or removing one unit; shards need replacing")
        if not (0 <= self.shape <= 1 and 0 < self.gamma < 1):
            raise ValueError("a selection needs a shape η from 0 to 1 and a γ between 0 and 1")

    def times(self, steps: int) -> PrivateSelection:
        if steps != 1:
            raise ValueError("a selection is charged once")
        return self

    def to_json(self) -> dict[str, Any]:
        candidates = [[event.to_json() for event in events] for events in self.candidates]
        numbers = {"shape": self.shape, "gamma": self.gamma}
        return {"kind": "private selection", "name": self.name, "candidates": candidates, **numbers}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PrivateSelection:
        found = tuple(tuple(event_from_json(event) for event in events) for events in data["candidates"])
        if not all(isinstance(event, SubsampledGaussian) for events in found for event in events):
            raise ValueError("a candidate of a selection asks noisy sums only")
        return cls(data["name"], found, data["shape"], data["gamma"])  # type: ignore[arg-type]


Charged = SubsampledGaussian | PrivateSelection
"""What is reserved on a ledger before it is charged."""
Event = Charged | RawAccess


def event_from_json(data: dict[str, Any]) -> Event:
    """The event that ``to_json`` wrote; an unknown kind is refused, since nobody could account for it."""
    match data.get("kind"):
        case "noisy sums":
            blocks = tuple(Block.from_json(block) for block in data["blocks"])
            event = SubsampledGaussian(data["name"], blocks, data["rate"], data["steps"], data.get("shards"))
            for key, follows in event.to_json().items():
                # What follows from the rest is written for readers without this code; cards of 0.2.0 lack some of it.
                if key in ("scheme", "relation", "sensitivity") and data.get(key, follows) != follows:
                    raise ValueError(f"event {event.name!r}: {key} is {follows!r}, not {data[key]!r}")
            return event
        case "private selection":
            return PrivateSelection.from_json(data)
        case "raw access":
            return RawAccess(data["name"], data["reason"])
        case kind:
            raise ValueError(f"unknown event kind {kind!r}; this version cannot account for it")


def merged(events: Iterable[Event]) -> tuple[Event, ...]:
    """Equal mechanisms added up into one event with more steps, in order of first appearance; selections stay apart."""
    total: dict[SubsampledGaussian | RawAccess, int] = {}
    selections = []
    for event in events:
        if isinstance(event, PrivateSelection):
            selections.append(event)
            continue
        key = event.times(1) if isinstance(event, SubsampledGaussian) else event
        total[key] = total.get(key, 0) + (event.steps if isinstance(event, SubsampledGaussian) else 1)
    sums = tuple(e.times(n) if isinstance(e, SubsampledGaussian) else e for e, n in total.items())
    return (*sums, *selections)
