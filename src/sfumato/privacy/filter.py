"""The limit across runs: a privacy filter for runs that are chosen after looking at earlier releases.

The accountants of ``accounting.py`` compose mechanisms that were fixed in advance. A person who reads one release
before planning the next run chooses adaptively, and then the limit needs a filter. Two cases are sound:

1. Everything on the ledger belongs to one run. Its plan was fixed before the data was touched, so that the accountant's
   tight ε holds.
2. Otherwise the Rényi filter of Feldman and Zrnic (2021) applies: at one order α, fixed when the ledger is created, the
   Rényi divergences of all charges add up whatever the choices were, and ε follows from the sum.

The plan of the first run decides which case applies, and it is chosen without the data: if it exceeds the filter's
limit, no second run is accepted, whether the first one asked all of its queries or was stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from sfumato.privacy.accounting import relation
from sfumato.privacy.budget import Budget, BudgetExceeded
from sfumato.privacy.events import Event, PrivateSelection, RawAccess, merged
from sfumato.privacy.renyi import ORDERS, converted, divergence
from sfumato.privacy.selection import selection_divergence

FILTER = "the Rényi filter of Feldman and Zrnic (2021), for runs that were chosen after reading earlier releases"


def filter_order(epsilon: float, delta: float) -> int:
    """The order at which the most Gaussian noise-to-signal fits below (ε, δ): Gaussians cost α·s, see ``converted``."""
    return max(ORDERS, key=lambda order: (epsilon - converted(0.0, order, delta)) / order)


def filtered_epsilon(events: Iterable[Event], order: int, delta: float) -> float:
    """The ε of these events together, however each was chosen after the answers to the earlier ones."""
    events = merged(events)
    if not events:
        return 0.0
    kind = relation(events)
    total = 0.0
    for event in events:
        if isinstance(event, RawAccess):
            return math.inf
        if isinstance(event, PrivateSelection):
            if kind is not event.relation:
                return math.inf
            total += selection_divergence(event, order)
            continue
        total += event.steps * divergence(event, kind, order)
    return max(0.0, converted(total, order, delta))


def check_first_plan(planned: Iterable[Event], order: int, limit: Budget) -> None:
    """Refuse a run after a first one whose whole plan keeps the limit by the accountant of one run alone.

    Otherwise whoever reads answers of the first run could let it go on or stop it for another one, and each way may
    reach the limit's δ on its own share of the outcomes.
    """
    if (cost := filtered_epsilon(planned, order, limit.delta)) > limit.epsilon:
        raise BudgetExceeded(
            f"refused: the plan of this ledger's first run costs ε {cost:.4g} by the filter for several runs, more "
            f"than the limit of {limit.epsilon:g}, so that no other run may follow it, even if it was stopped early. "
            "Resume it with its checkpoint"
        )
