"""The card: what a release promises and how that is known, as plain data. Nothing private goes into it."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sfumato.privacy import Budget, Event, Ledger, Plan, Randomness, RawAccess, SubsampledGaussian
from sfumato.privacy.accounting import ACCOUNTANT, epsilon, relation
from sfumato.privacy.randomness import DESCRIPTION
from sfumato.release.attack_bounds import best_guess, most_recognised

FALSE_ALARMS = (1000, 100, 10)
"""One false alarm in so many."""
PACKAGES = ("sfumato", "torch", "numpy", "dp-accounting", "safetensors")


def rounded_up(value: float, digits: int = 3) -> float:
    """To ``digits`` significant digits, never below the value: a printed ε is never smaller than the true one."""
    if value == 0 or not math.isfinite(value):
        return value
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    # A value that is already round (1.0 stored as 0.9999…98 × scale) must not climb to the next digit.
    return math.ceil(value * scale * (1 - 1e-12)) / scale


def make_card(
    *,
    method: str,
    paper: str,
    parameters: dict[str, Any],
    plan: Plan,
    ledger: Ledger,
    run: str,
    randomness: Randomness,
    shape: tuple[int, int, int],
    classes: Sequence[str],
    counts: Sequence[float] | None,
    declared_size: int | None,
    max_images_per_unit: int,
    device: str,
    command: str | None,
    claim: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Certified where every access was a Curator's answer, no guarantee where the records were opened."""
    events = ledger.events(run)
    reasons = [event.reason for event in events if isinstance(event, RawAccess)]
    if randomness.seeded:
        reasons.append("a fixed seed was used, for tests: whoever knows it can take the noise away")
    budget = plan.budget
    certified = not reasons and isinstance(budget, Budget)
    spent = epsilon(events, budget.delta) if certified else math.inf
    length, digest = ledger.head
    card: dict[str, Any] = {
        "guarantee": "certified" if certified else "no guarantee",
        "epsilon": rounded_up(spent) if certified else None,
        "delta": budget.delta if certified else None,
        "unit": budget.unit,
        "claim": claim,
        "relation": relation(events),
        "sentence": "",
        "best_guess": rounded_up(best_guess(events)) if certified else 1.0,
        "recognised": {str(often): rounded_up(most_recognised(events, 1 / often)) for often in FALSE_ALARMS}
        if certified
        else None,
        "reasons": reasons,
        "collection_epsilon": rounded_up(ledger.spent()) if math.isfinite(ledger.spent()) else None,
        "method": method,
        "variant": parameters["variant"],
        "paper": paper,
        "parameters": parameters,
        "events": [event.to_json() for event in events],
        "sampler": _sampler(events),
        "accountant": ACCOUNTANT,
        "randomness": f"{DESCRIPTION}{' (FIXED SEED)' if randomness.seeded else ''}",
        "public": _public(shape, classes, declared_size, budget.unit, max_images_per_unit),
        "shape": list(shape),
        "classes": list(classes),
        "class_counts": None if counts is None else [round(float(value), 1) for value in counts],
        "class_counts_are": "noisy counts of units, part of the spending" if counts is not None else None,
        "audits": [],
        "ledger_head": {"length": length, "hash": digest},
        "run": run,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "device": device.partition(":")[0],
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in PACKAGES},
        },
    }
    card["sentence"] = sentence(card)
    return card


def sentence(card: dict[str, Any]) -> str:
    """The guarantee in words."""
    if card["guarantee"] != "certified":
        return (
            "NO GUARANTEE. These images were not made under differential privacy "
            f"({'; '.join(card['reasons']) or 'the budget promised nothing'}). Treat them as you treat the originals."
        )
    return (
        f"Whether or not any one {card['unit']} was in the collection changes the probability of every possible "
        f"release by at most a factor of e^{card['epsilon']:g}, except with probability {card['delta']:g}. Someone who "
        f"guesses whether a given {card['unit']} was in it, and would be right half the time without the release, can "
        f"be right at most {100 * card['best_guess']:.1f} % of the time with it."
    )


def _sampler(events: Sequence[Event]) -> str:
    shards = sorted(
        {event.shards for event in events if isinstance(event, SubsampledGaussian) and event.shards is not None}
    )
    if not shards:
        return "independent Poisson coins, one for each unit"
    numbers = " and ".join(str(number) for number in shards)
    return f"independent Poisson coins, one for each of {numbers} shards where units speak together"


def _public(
    shape: tuple[int, int, int], classes: Sequence[str], declared_size: int | None, unit: str, max_images: int
) -> list[str]:
    """What was treated as known to everyone, so that nobody has to guess it."""
    facts = [
        f"the image size, {shape[1]}×{shape[2]} with {shape[0]} channel{'s' if shape[0] > 1 else ''}",
        f"the label set, {len(classes)} class{'es' if len(classes) != 1 else ''} (not how many images each has)",
        "the method, its parameters and the number of steps",
    ]
    if declared_size is not None:
        facts.append(f"the size of the collection, declared as about {declared_size}")
    if unit == "person":
        facts.append(f"that at most {max_images} images of a person are used at a time")
    return facts
