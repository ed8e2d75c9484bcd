"""Bounds on what an attacker can find out, from the events of a ledger or from (ε, δ) alone."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sfumato.privacy.accounting import trade_off
from sfumato.privacy.events import Event


def best_guess(events: Iterable[Event]) -> float:
    """Largest probability that an attacker is right about one unit's presence, when it is present half the time.

    (1 + TV)/2, where the total variation distance TV is the δ at ε = 0.
    """
    return min(1.0, (1.0 + trade_off(events)[0][1]) / 2.0)


def guess_by_definition(epsilon: float, delta: float) -> float:
    """The same probability by (ε, δ) alone: TV ≤ (e^ε − 1 + 2δ) / (e^ε + 1)."""
    factor = math.exp(-epsilon)
    return min(1.0, (1.0 + (1.0 - factor + 2.0 * delta * factor) / (1.0 + factor)) / 2.0)


def most_recognised(events: Iterable[Event], false_alarms: float) -> float:
    """Largest share of the units present that any test can recognise at this rate of false alarms.

    TPR ≤ e^ε · FPR + δ(ε) and, with the errors exchanged, 1 − FPR ≤ e^ε · (1 − TPR) + δ(ε), for every ε at once.
    """
    found = [1.0]
    for level, delta in trade_off(events):
        found += [math.exp(level) * false_alarms + delta, 1 - math.exp(-level) * (1 - delta - false_alarms)]
    return min(found)


def recognised_by_definition(epsilon: float, delta: float, false_alarms: float) -> float:
    """The same share by (ε, δ) alone: TPR ≤ e^ε · FPR + δ and 1 − FPR ≤ e^ε · (1 − TPR) + δ."""
    upper = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    other = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms)
    return min(1.0, upper, other)
