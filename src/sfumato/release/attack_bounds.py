"""What the events of a ledger allow an attacker, in odds."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sfumato.privacy.accounting import trade_off
from sfumato.privacy.events import Event


def best_guess(events: Iterable[Event]) -> float:
    """How often the best possible attacker is right about one unit's presence, when it is there half the time.

    (1 + TV)/2, where the total variation distance TV is the δ at ε = 0.
    """
    return min(1.0, (1.0 + trade_off(events)[0][1]) / 2.0)


def most_recognised(events: Iterable[Event], false_alarms: float) -> float:
    """The largest share of the units that were there which any test can point out, at this rate of false alarms.

    TPR ≤ e^ε · FPR + δ(ε) and, with the errors exchanged, 1 − FPR ≤ e^ε · (1 − TPR) + δ(ε), for every ε at once.
    """
    found = [1.0]
    for level, delta in trade_off(events):
        found += [math.exp(level) * false_alarms + delta, 1 - math.exp(-level) * (1 - delta - false_alarms)]
    return min(found)
