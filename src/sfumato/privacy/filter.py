"""The limit across runs: a privacy filter for runs that are chosen after looking at earlier releases.

The accountants of ``accounting.py`` compose mechanisms that were fixed in advance. A person who reads one release
before planning the next run chooses adaptively, and then the limit needs a filter. Two cases are sound:

1. Everything on the ledger belongs to one run. Its plan was fixed before the data was touched, so that the accountant's
   tight ε holds.
2. Otherwise the Rényi filter of Feldman and Zrnic (2021) applies: at one order α, fixed when the ledger is created, the
   Rényi divergences of all charges add up whatever the choices were, and ε follows from the sum.

The plan of the first run decides which case applies, and it is chosen without the data: if it exceeds the filter's
limit, no second run is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import gammaln, logsumexp

from sfumato.privacy.accounting import relation
from sfumato.privacy.events import Event, RawAccess, Relation, SubsampledGaussian, merged

ORDERS = range(2, 257)


def filter_order(epsilon: float, delta: float) -> int:
    """The order at which the most Gaussian noise-to-signal fits below (ε, δ): Gaussians cost α·s, see ``converted``."""
    return max(ORDERS, key=lambda order: (epsilon - converted(0.0, order, delta)) / order)


def converted(divergence: float, order: int, delta: float) -> float:
    """The ε at δ of a mechanism with this Rényi divergence (Canonne, Kamath and Steinke, 2020, proposition 12)."""
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


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
        total += event.steps * divergence(event, kind, order)
    return max(0.0, converted(total, order, delta))


def divergence(event: SubsampledGaussian, kind: Relation, order: int) -> float:
    """The Rényi divergence of one step, at a whole-number order, between neighbouring collections.

    Adding or removing: the binomial sum of Mironov, Talwar and Zhang (2019). Replacing: the two mixtures share their
    part of weight 1 − q, and exp((α − 1)·D) is jointly convex, hence log(1 + q·(exp((α − 1)·D') − 1)) / (α − 1) with D'
    the divergence of two Gaussians that are two clip norms apart.
    """
    rate, noise = event.sampling_rate, event.noise_multiplier
    far = event.sensitivity(kind)
    whole = order * (order - 1) * far**2 / (2 * noise**2)
    if rate == 1:
        return whole / (order - 1)
    if kind is Relation.REPLACE:
        return float(logsumexp([math.log1p(-rate), math.log(rate) + whole])) / (order - 1)
    k = np.arange(order + 1)
    binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    weights = binomial + (order - k) * math.log1p(-rate) + k * math.log(rate)
    return max(0.0, float(logsumexp(weights + k * (k - 1) * far**2 / (2 * noise**2))) / (order - 1))
