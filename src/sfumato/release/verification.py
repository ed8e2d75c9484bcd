"""Whether a card says what its ledger bears out."""

from __future__ import annotations

from sfumato.privacy import Ledger
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.events import PrivateSelection
from sfumato.release.card import Card, rounded_up


def disagreements(card: Card, ledger: Ledger) -> list[str]:
    """What the card states and the ledger does not bear out, a sentence each; empty if everything fits."""
    head, run = card.ledger_head, card.run
    if not ledger.holds(head.length, head.hash) or not ledger.knows(run):
        return ["its spending is not on this ledger"]
    entry, events = ledger.run_entry(run), ledger.release_events(run)
    found = []
    # A selection is one run of several methods, of which the best is released.
    selected = any(isinstance(event, PrivateSelection) for event in events)
    if not selected and (card.method, card.variant) != (entry["method"], entry["variant"]):
        found.append(
            f"the run on the ledger is of {entry['method']} {entry['variant']}, not {card.method} {card.variant}"
        )
    if card.events != tuple(events):
        found.append("the events on the card are not those that the ledger charges to its run")
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
        spent = rounded_up(epsilon(events, card.delta)) if card.delta else float("inf")
        if card.epsilon is None or card.epsilon < spent:
            found.append(f"the card states ε {card.epsilon}, and what the ledger charges to its run costs {spent:g}")
    return found
