"""Which method, for how long, and to what use: from public facts, before any look at the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sfumato.methods import METHODS, Method, find
from sfumato.planning.costs import REFERENCE_VALUES, costs, training_seconds
from sfumato.planning.expected_use import (
    GOOD_FROM,
    HOPELESS_BELOW,
    PublicFacts,
    Use,
    expected_share,
    signal_to_noise,
    units_needed,
)
from sfumato.texts import duration

if TYPE_CHECKING:
    from sfumato.release.card import Card

ASSUMED_SIZE = 10_000
"""The number of units that a choice is made for where none is declared: the real one is private."""
TIME_LIMIT = 3600.0
"""Seconds that a training may take if the user does not say otherwise."""
_MEASURED_IMAGES = 60_000
_PROCESS = 700 * 2**20  # bytes of an idle process with torch


@dataclass(frozen=True)
class MethodPlan:
    """What a training of one method will cost and what to expect from its images.

    Attributes:
        method: The name in the registry.
        variant: The certified variant.
        cpu_seconds: Seconds on one CPU core.
        gpu_seconds: Seconds on one NVIDIA H200.
        memory: Bytes at the peak, on the device that trains.
        signal_to_noise: See ``expected_use``; the same for all methods.
        share: The expected share of the accuracy of real data, counted from chance; None if never measured.
        expected_use: The share in a word; None if never measured.
        why: One sentence about the expected use.
        rough_from: How many units rough use takes at this budget; None if it was never reached or never measured.
    """

    method: str
    variant: str
    cpu_seconds: float
    gpu_seconds: float
    memory: int
    signal_to_noise: float
    share: float | None
    expected_use: Use | None
    why: str
    rough_from: int | None = None

    def seconds(self, device: str) -> float:
        """Seconds on this kind of device, ``cpu`` or ``cuda``."""
        return self.gpu_seconds if device.startswith("cuda") else self.cpu_seconds

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """A method that was chosen from public facts, and the reason in one sentence."""

    plan: MethodPlan
    why: str

    @property
    def method(self) -> str:
        return self.plan.method


def plan_all(facts: PublicFacts, *, methods: Sequence[Method] | None = None) -> tuple[MethodPlan, ...]:
    """A row for every certified method (or for ``methods``), the most useful first.

    >>> rows = plan_all(PublicFacts(declared_size=500, size=28, classes=10, epsilon=1.0))
    >>> {row.expected_use.value for row in rows if row.expected_use}
    {'hopeless'}
    """
    rows = [plan_method(method, facts) for method in methods or certified_methods()]
    return tuple(sorted(rows, key=lambda row: (-1.0 if row.share is None else -row.share, row.gpu_seconds)))


def certified_methods() -> list[Method]:
    """Every registered method that has a certified form, in its first one."""
    kinds = [find(name) for name in METHODS]
    return [kind(variant=kind.certified_variants()[0]) for kind in kinds if kind.certified_variants()]


def plan_method(method: Method, facts: PublicFacts) -> MethodPlan:
    """The row of one method."""
    ratio = signal_to_noise(facts)
    share = expected_share(method.name, ratio)
    known = method.name in costs()["methods"]

    def seconds(device: str) -> float:
        return (
            training_seconds(method, records=facts.declared_size, values=facts.values, device=device)
            if known
            else float("nan")
        )

    return MethodPlan(
        method=method.name,
        variant=method.variant,
        cpu_seconds=seconds("cpu"),
        gpu_seconds=seconds("cuda"),
        memory=_memory(method, facts),
        signal_to_noise=ratio,
        share=share,
        expected_use=None if share is None else Use.of(share),
        why=_why(method.name, share, facts),
        rough_from=None if share is None else units_needed(method.name, facts, HOPELESS_BELOW),
    )


def choose_method(facts: PublicFacts, *, device: str = "cpu", time_limit: float = TIME_LIMIT) -> Choice:
    """The method with the highest expected accuracy among those that train within ``time_limit`` seconds.

    Where none does, the fastest. Two methods count as equal if their shares differ by at most 0.02; then the faster one
    is taken. Where all are hopeless, it is the fastest of those with which rough use takes at most twice the fewest
    units.

    >>> choose_method(PublicFacts(declared_size=60_000, size=28, classes=10, epsilon=1.0), device="cuda").method
    'dp-mixture'
    """
    chosen = best_of(plan_all(facts), device=device, time_limit=time_limit)
    if chosen.seconds(device) > time_limit:
        return Choice(chosen, f"{chosen.method}: no method trains within {duration(time_limit)} here, it is fastest")
    where = "a GPU" if device.startswith("cuda") else "one CPU core"
    limited = f"of the methods that train within {duration(time_limit)} on {where}"
    if chosen.expected_use is Use.HOPELESS and chosen.rough_from is not None:
        reason = f"{limited} rough use needs few {facts.unit}s with it"
        return Choice(chosen, f"{chosen.method}: {reason} ({_collection(facts)}: hopeless)")
    reason = f"{limited} it has the highest expected accuracy for {_collection(facts)}"
    return Choice(chosen, f"{chosen.method}: {reason} ({chosen.expected_use})")


def best_of(plans: Sequence[MethodPlan], *, device: str, time_limit: float = TIME_LIMIT) -> MethodPlan:
    """The plan that ``choose_method`` takes."""
    rows = [row for row in plans if row.share is not None]
    within = [row for row in rows if row.seconds(device) <= time_limit]
    best = max((row.share or 0.0 for row in within), default=0.0)
    if within and best < HOPELESS_BELOW:
        fewest = min(row.rough_from or math.inf for row in within)
        within = [row for row in within if (row.rough_from or math.inf) <= 2 * fewest]
        return min(within, key=lambda row: row.seconds(device))
    return min(
        [row for row in within if (row.share or 0.0) >= best - 0.02] or rows, key=lambda row: row.seconds(device)
    )


def use_warning(method: str, facts: PublicFacts) -> str | None:
    """A warning if the images will not be useful; None if they will, or if the method was never measured."""
    share = expected_share(method, signal_to_noise(facts))
    return None if share is None or share >= HOPELESS_BELOW else _why(method, share, facts)


def use_needs(method: str, facts: PublicFacts) -> str | None:
    """How many units rough and good use need at this budget; the real number is private, so it is not compared."""
    rough, good = (units_needed(method, facts, share) for share in (HOPELESS_BELOW, GOOD_FROM))
    if rough is None:
        return None
    text = f"At ε {facts.epsilon:g}, {method} needs about {rough:,} {facts.unit}s for rough use"
    return f"{text}, {good:,} for good use" if good is not None else f"{text}; good use was never reached with it"


def too_few_counted(card: Card) -> str | None:
    """A warning where the released, noisy counts are of fewer units than any use needs; only the card is read."""
    if card.class_counts is None or card.epsilon is None or card.delta is None:
        return None
    channels, height, width = card.shape
    facts = PublicFacts(
        declared_size=1,
        size=max(height, width),
        channels=channels,
        classes=len(card.classes),
        epsilon=card.epsilon,
        delta=card.delta,
        unit=card.unit,
    )
    found, needed = max(0.0, sum(card.class_counts)), units_needed(card.method, facts, HOPELESS_BELOW)
    if needed is None or found >= needed:
        return None
    return (
        f"By the noisy counts that are released there are about {found:,.0f} {card.unit}s, and rough use needs about "
        f"{needed:,} at ε {card.epsilon:g}: the images show noise more than the collection."
    )


def _why(method: str, share: float | None, facts: PublicFacts) -> str:
    if share is None:
        return "it was never measured on public data with its default settings"
    if Use.of(share) is not Use.HOPELESS:
        return (
            f"by measurements on MNIST, a classifier trained on the images should reach about {100 * share:.0f} % of "
            "what real images give, counted from chance"
        )
    needed = units_needed(method, facts, HOPELESS_BELOW)
    hint = f"; rough use needs about {needed:,} {facts.unit}s" if needed is not None else "; no number helps"
    collection = _collection(facts)
    return f"the noise hides {collection} at ε {facts.epsilon:g} almost completely{hint}"


def _collection(facts: PublicFacts) -> str:
    classes = f"{facts.classes} class{'es' if facts.classes != 1 else ''}"
    return f"{facts.declared_size:,} {facts.unit}{'s' if facts.declared_size != 1 else ''} in {classes}"


def _memory(method: Method, facts: PublicFacts) -> int:
    """Bytes at the peak: the process, the images, and what the method's steps hold for images of this size."""
    measured = costs()["memory"].get(method.name, max(costs()["memory"].values())) * 2**20
    steps = measured * facts.values / REFERENCE_VALUES * min(1.0, facts.declared_size / _MEASURED_IMAGES)
    return round(_PROCESS + facts.declared_size * facts.values + steps)
