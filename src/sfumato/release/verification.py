"""Whether a card says what its ledger bears out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sfumato.privacy import Ledger
from sfumato.privacy.accounting import relation
from sfumato.privacy.events import PrivateSelection
from sfumato.release.card import Card, beyond, rounded_up
from sfumato.release.plain_numbers import best_guess, guess_by_definition

_OTHER_ACCOUNTANT = 1e-3  # between versions of the accountant, as a share of a stated probability


def disagreements(card: Card, ledger: Ledger) -> list[str]:
    """What the card states and the ledger does not bear out, a sentence each; empty if everything fits."""
    head, run = card.ledger_head, card.run
    if not ledger.holds(head.length, head.hash) or not ledger.knows(run):
        return ["its spending is not on this ledger"]
    entry, events = ledger.run_entry(run), ledger.release_events(run)
    found = []
    # A selection is one run of several methods, of which the best is released.
    if not any(isinstance(event, PrivateSelection) for event in events):
        method, variant, parameters = _released_method(entry)
        if (card.method, card.variant) != (method, variant):
            found.append(f"the run on the ledger is of {method} {variant}, not {card.method} {card.variant}")
        # A ledger of version 0.1.0 does not have them.
        elif parameters is not None and json.loads(json.dumps(dict(card.parameters))) != parameters:
            found.append("the parameters on the card are not those that the run was started with")
    if card.events != tuple(events):
        found.append("the events on the card are not those that the ledger charges to its run")
    planned = ledger.committed_events(run)
    if set(card.planned) != set(beyond(events, planned)):
        found.append("the plan on the card is not the one that the run was started with")
    if card.certified:
        found += [
            f"the card says certified, but {reason}"
            for reason, holds in {
                "the run drew its noise from a fixed seed": ledger.seeded(run),
                "code outside of the trusted base answered queries": bool(ledger.own_code(run)),
                "the collection's unit is another": card.unit != ledger.limit.unit,
            }.items()
            if holds
        ]
        spent = rounded_up(ledger.release_epsilon(run, card.delta)) if card.delta else float("inf")
        if card.epsilon is None or card.epsilon < spent:
            found.append(f"the card states ε {card.epsilon}, and what the ledger charges to its run costs {spent:g}")
        if card.relation != relation(planned):
            found.append(f"the card says {card.relation!r}, and the ε of the run holds for {str(relation(planned))!r}")
        guess = guess_by_definition(spent, card.delta or 0.0) if ledger.adaptive(run) else best_guess(planned)
        if card.best_guess < guess * (1 - _OTHER_ACCOUNTANT):
            found.append(f"the card states that {card.best_guess:g} of guesses are right at most, and it is {guess:g}")
    return found


def _released_method(entry: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Name, variant and parameters of the method whose generator a run releases."""
    parameters = entry.get("parameters")
    if entry["method"] == "measured" and parameters:
        # ``methods/scored.py``: the count is on the card, and the generator is that of the measured method.
        inner = json.loads(parameters["settings"])
        return parameters["base"], inner["variant"], inner
    return entry["method"], entry["variant"], parameters
