"""The card: what is guaranteed for a release and how that follows from its events. It holds no private value."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from sfumato.files import json_text, parsed_json
from sfumato.privacy import Budget, Event, Ledger, Plan, SubsampledGaussian
from sfumato.privacy.accounting import ACCOUNTANT, FILTER, relation
from sfumato.privacy.budget import Unit
from sfumato.privacy.events import event_from_json
from sfumato.privacy.randomness import DESCRIPTION
from sfumato.release.plain_numbers import (
    best_guess,
    entries,
    factor_text,
    guess_by_definition,
    most_recognised,
    one_in_text,
    percent,
)

CERTIFIED, NO_GUARANTEE = "certified", "no guarantee"
FALSE_ALARMS = (1000, 100, 10)
"""One false alarm in so many."""
_LATER = frozenset({"remarks", "notes", "planned", "ledger", "lineage", "composition", "weights", "gaussian_mu"})
"""Entries that cards of earlier versions do not have, and that are left out where they are empty."""
PACKAGES = ("sfumato", "torch", "numpy", "dp-accounting", "safetensors")


def rounded_up(value: float, digits: int = 3) -> float:
    """Round up to ``digits`` significant digits, so that a printed ε is never smaller than the computed one."""
    if value == 0 or not math.isfinite(value):
        return value
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    # A value that is already round (1.0 stored as 0.9999…98 × scale) must not climb to the next digit.
    return math.ceil(value * scale * (1 - 1e-12)) / scale


@dataclass(frozen=True)
class Claim:
    """An ε that the authors of a method claim for the same noise; pages show it struck through."""

    epsilon: float
    delta: float
    by: str


@dataclass(frozen=True)
class LedgerHead:
    """The last ledger entry when the card was made: the number of entries and the hash that chains them.

    The run's end follows it, and has the hashes of the card, its page and the weights. (In version 0.2.0 it was the
    end itself.)
    """

    length: int
    hash: str


@dataclass(frozen=True)
class Guarantee:
    """The part of a card that is repeated with every number measured on its images."""

    status: str
    epsilon: float | None
    delta: float | None
    unit: str | None

    def to_json(self) -> dict[str, Any]:
        """The four entries under the names that a card has for them."""
        return {"guarantee": self.status, "epsilon": self.epsilon, "delta": self.delta, "unit": self.unit}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The guarantee that ``to_json`` wrote."""
        return cls(data["guarantee"], data["epsilon"], data["delta"], data["unit"])


@dataclass(frozen=True)
class Card:
    """Everything that is stated about a release. The fields are the keys of ``card.json``, in this order."""

    guarantee: str
    epsilon: float | None
    delta: float | None
    unit: Unit
    claim: Claim | None
    relation: str
    sentence: str
    best_guess: float
    recognised: Mapping[str, float] | None
    reasons: tuple[str, ...]
    collection_epsilon: float | None
    method: str
    variant: str
    paper: str
    parameters: Mapping[str, Any]
    events: tuple[Event, ...]
    sampler: str
    accountant: str
    randomness: str
    public: tuple[str, ...]
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    class_counts: tuple[float, ...] | None
    class_counts_are: str | None
    audits: tuple[str, ...]
    ledger_head: LedgerHead
    run: str
    made: str
    command: str | None
    device: str
    versions: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    """Public sentences: where the settings come from, what to expect from the images."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What the custodian states, such as purpose, controller, contact and retention; nothing checks it."""
    planned: tuple[Event, ...] = ()
    """What ε is computed from where not all of the planned queries were asked: the whole plan."""
    ledger: str = ""
    """The id of the ledger, which is random."""
    lineage: tuple[str, ...] = ()
    """The other runs whose releases the run treated as public, and theirs: their spending is in ``events``."""
    composition: Mapping[str, Any] | None = None
    """How the events were joined: ``rule`` is "fixed in advance" or "renyi filter", which has an ``order``."""
    weights: str = ""
    """The SHA-256 of ``model.safetensors``."""
    gaussian_mu: float | None = None
    """μ of Gaussian differential privacy, where it is exact: no event is subsampled and all were fixed in advance."""

    def __post_init__(self) -> None:
        if self.guarantee not in (CERTIFIED, NO_GUARANTEE):
            raise ValueError(f'a guarantee is "{CERTIFIED}" or "{NO_GUARANTEE}", not {self.guarantee!r}')
        if not self.sentence.strip():
            raise ValueError("a card must state its guarantee in a sentence")
        if self.certified:
            numbers = (self.epsilon, self.delta)
            if any(number is None or not math.isfinite(number) or number < 0 for number in numbers):
                raise ValueError("a certified card must give a finite epsilon and delta")

    @property
    def accounted(self) -> tuple[Event, ...]:
        """The events that ε is computed from, and that a run which builds on the release has to count."""
        return self.planned or self.events

    @property
    def certified(self) -> bool:
        """Whether the release is covered by the (ε, δ) of this card."""
        return self.guarantee == CERTIFIED

    @property
    def explained(self) -> str:
        """The sentence, and beside its bound on a guess the one that any method has at this ε."""
        if self.epsilon is None or self.delta is None:
            return self.sentence
        bound = percent(guess_by_definition(self.epsilon, self.delta))
        return f"{self.sentence} By ε and δ alone, whatever the method, it would be {bound}."

    def summary(self) -> Guarantee:
        """Status, ε, δ and unit, for results that are measured on the release's images."""
        return Guarantee(self.guarantee, self.epsilon, self.delta, self.unit)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``card.json``."""
        return {key: value for key, value in entries(self).items() if value or key not in _LATER}

    @property
    def text(self) -> str:
        """``card.json`` as it was released. Results of audits are added later, and are no part of its hash."""
        return json_text({**self.to_json(), "audits": []})

    @property
    def sha256(self) -> str:
        """What the ledger's last entry of the run has."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls.from_json(parsed_json((folder / "card.json").read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The card that ``to_json`` wrote; a missing or an unknown entry is an error that names it."""
        names = [one.name for one in fields(cls) if one.name in data or one.name not in _LATER]
        missing, unknown = [name for name in names if name not in data], sorted(set(data) - set(names))
        if missing or unknown:
            raise ValueError(f"the card lacks {missing}" if missing else f"the card has unknown entries {unknown}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value := data[name], list) else value for name in names
        }
        values["claim"] = None if data["claim"] is None else Claim(**data["claim"])
        for name in ("events", "planned"):
            values[name] = tuple(event_from_json(event) for event in data.get(name, ()))
        values["ledger_head"] = LedgerHead(**data["ledger_head"])
        if not all(isinstance(line, str) for line in values["audits"]):
            raise ValueError("a line about audits is not text")
        return cls(**values)


def make_card(
    *,
    method: str,
    paper: str,
    parameters: Mapping[str, Any],
    plan: Plan,
    ledger: Ledger,
    run: str,
    reasons: Sequence[str],
    shape: tuple[int, int, int],
    classes: Sequence[str],
    counts: Sequence[float] | None,
    declared_size: int | None,
    max_images_per_unit: int,
    device: str,
    command: str | None,
    claim: Mapping[str, Any] | None = None,
    remarks: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
) -> Card:
    """The card of a run: certified unless the session gives ``reasons`` against it."""
    events = ledger.release_events(run)
    # What was asked may depend on earlier answers; what is stated holds for all that could have been asked.
    planned = ledger.committed_events(run)
    budget = plan.budget
    certified = not reasons and isinstance(budget, Budget)
    spent = rounded_up(ledger.release_epsilon(run, budget.delta)) if certified else None
    # The trade-off curve of all events together holds only if they were fixed in advance.
    curve = certified and not ledger.adaptive(run)
    guess = (
        1.0 if spent is None else rounded_up(best_guess(planned) if curve else guess_by_definition(spent, budget.delta))
    )
    return Card(
        guarantee=CERTIFIED if certified else NO_GUARANTEE,
        epsilon=spent,
        delta=budget.delta if certified else None,
        unit=budget.unit,
        claim=None if claim is None else Claim(**claim),
        relation=relation(planned),
        sentence=no_guarantee_sentence(reasons)
        if spent is None
        else sentence_of(spent, budget.delta, budget.unit, guess),
        best_guess=guess,
        recognised=recognised_of(planned) if curve else None,
        reasons=tuple(reasons),
        collection_epsilon=max(spent or 0.0, rounded_up(ledger.spent())) if math.isfinite(ledger.spent()) else None,
        method=method,
        variant=parameters["variant"],
        paper=paper,
        parameters=dict(parameters),
        events=tuple(events),
        sampler=sampler_of(events),
        accountant=ACCOUNTANT if curve or not certified else FILTER,
        randomness=DESCRIPTION + _of_the_key(ledger, run),
        public=_public(shape, classes, declared_size, budget.unit, max_images_per_unit) + public_inputs(ledger, run),
        shape=shape,
        classes=tuple(classes),
        class_counts=None if counts is None else tuple(round(float(value), 1) for value in counts),
        class_counts_are="noisy counts of units, part of the spending" if counts is not None else None,
        audits=(),
        ledger_head=LedgerHead(*ledger.head),
        run=run,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        device=device.partition(":")[0],
        versions={
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
        remarks=tuple(remarks),
        notes=dict(notes or {}),
        planned=beyond(events, planned),
        ledger=ledger.id,
        lineage=ledger.lineage(run),
        composition=_rule(ledger, run),
        gaussian_mu=gaussian_mu(planned) if curve else None,
    )


def _of_the_key(ledger: Ledger, run: str) -> str:
    if ledger.seeded(run):
        return " (FIXED SEED)"
    return "; the custodian has kept the key, to compute the run again" if ledger.key_kept(run) else ""


def _rule(ledger: Ledger, run: str) -> dict[str, Any]:
    return {"rule": "renyi filter", "order": ledger.order} if ledger.adaptive(run) else {"rule": "fixed in advance"}


def gaussian_mu(events: Sequence[Event]) -> float | None:
    """μ of the composition of Gaussian mechanisms over all units, √Σ (sensitivity ÷ noise)²; None for any other.

    >>> from sfumato.privacy import Block
    >>> gaussian_mu([SubsampledGaussian("sum", (Block("sum", 2.0),), steps=4)])
    1.0
    """
    if not all(isinstance(event, SubsampledGaussian) and event.sampling_rate == 1 for event in events):
        return None
    kind, total = relation(events), 0.0
    for event in events:
        assert isinstance(event, SubsampledGaussian)
        total += event.steps * (event.sensitivity(kind) / event.noise_multiplier) ** 2
    return rounded_up(math.sqrt(total), 6) if events else None


def beyond(events: Sequence[Event], planned: Sequence[Event]) -> tuple[Event, ...]:
    """The plan, if it holds more than was asked."""
    return () if set(events) == set(planned) else tuple(planned)


def recognised_of(events: Sequence[Event]) -> dict[str, float]:
    """The share of the units present that any test can recognise, for each rate of false alarms."""
    return {str(often): rounded_up(most_recognised(events, 1 / often)) for often in FALSE_ALARMS}


def no_guarantee_sentence(reasons: Sequence[str]) -> str:
    """What stands in place of a guarantee."""
    return (
        "NO GUARANTEE. These images were not made under differential privacy "
        f"({'; '.join(reasons) or 'no privacy budget was set'}). Treat them as you treat the originals."
    )


def sentence_of(spent: float, delta: float, unit: str, guess: float) -> str:
    """The guarantee in words, from ε, δ, the unit and the best guess."""
    return (
        f"Whether or not any one {unit} was in the collection changes the probability of every possible "
        f"release by at most a factor of e^{spent:g}, which is {factor_text(spent)}, except with probability "
        f"{delta:g}, which is {one_in_text(delta)}. Someone who "
        f"guesses whether a given {unit} was in it, and would be right half the time without the release, can "
        f"be right at most {100 * guess:.1f} % of the time with it."
    )


def sampler_of(events: Sequence[Event]) -> str:
    """How batches were drawn, in words."""
    shards = sorted(
        {event.shards for event in events if isinstance(event, SubsampledGaussian) and event.shards is not None}
    )
    if not shards:
        return "independent Poisson coins, one for each unit"
    numbers = " and ".join(str(number) for number in shards)
    return f"independent Poisson coins, one for each of {numbers} shards"


def _public(
    shape: tuple[int, int, int], classes: Sequence[str], declared_size: int | None, unit: str, max_images: int
) -> tuple[str, ...]:
    """What the accounting treats as known to everyone."""
    facts = [
        f"the image size, {shape[1]}×{shape[2]} with {shape[0]} channel{'s' if shape[0] > 1 else ''}",
        f"the label set, {len(classes)} class{'es' if len(classes) != 1 else ''} (not how many images each has)",
        "the method, its parameters and the number of steps",
    ]
    if declared_size is not None:
        facts.append(f"the size of the collection, declared as about {declared_size}")
    if unit == "person":
        facts.append(f"that at most {max_images} images of a person are used at a time")
    return tuple(facts)


def public_inputs(ledger: Ledger, run: str) -> tuple[str, ...]:
    """The public collections, and what about them is the custodian's statement."""
    return tuple(_public_input(one) for one in ledger.public_inputs(run))


def _public_input(one: Mapping[str, str]) -> str:
    named = f"the collection {one['name']!r} (fingerprint {one['fingerprint']}, keyed by the ledger), "
    if "release" not in one:
        return named + "which by the custodian's statement shares no record with the private one"
    found = named + f"drawn from the release of run {one['release']}, whose spending is counted"
    if proof := one.get("proof"):
        return f"{found} (by {proof}); that the images are from it is the custodian's statement"
    return (
        f"{found} as its card states it; that this card is true and the images are its own is the custodian's statement"
    )
