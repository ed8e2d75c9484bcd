"""From events to ε, and from a budget to noise. The only module that knows dp-accounting.

ε is the smaller of two valid bounds: the privacy loss distribution (PLD, tight) and Rényi DP (robust). Both are upper
bounds for adaptive composition of Poisson-subsampled Gaussians when one unit is added or removed. With sharded queries
the whole composition is evaluated under replace-one, for which the PLD alone is used. Where δ is so small that rounding
could hide it from the PLD, about 1e-9, Rényi DP alone decides.

The accountants compose mechanisms that were fixed in advance. A person who reads one release before planning the next
run chooses adaptively, and then the limit needs a filter. Two cases are sound:

1. Everything on the ledger belongs to one run. Its plan was fixed before the data was touched, so that the accountant's
   tight ε holds.
2. Otherwise the Rényi filter of Feldman and Zrnic (2021) applies: at one order α, fixed when the ledger is created, the
   Rényi divergences of all charges add up whatever the choices were, and ε follows from the sum.

The plan of the first run decides which case applies, and it is chosen without the data: if it exceeds the filter's
limit, no second run is accepted, whether the first one asked all of its queries or was stopped.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dp_accounting
import numpy as np
from absl import logging as absl_logging
from dp_accounting import NeighboringRelation
from dp_accounting.pld.pld_pmf import PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism, identity
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln, logsumexp

from sfumato.privacy.budget import AnyBudget, Budget, BudgetExceeded
from sfumato.privacy.events import Block, Event, PrivateSelection, RawAccess, Relation, SubsampledGaussian, merged
from sfumato.texts import aligned

ORDERS = range(2, 257)


def converted(divergence: float, order: int, delta: float) -> float:
    """The ε at δ of a mechanism with this Rényi divergence.

    Guarantee. The mechanism is (ε, δ)-private for this ε (Canonne, Kamath and Steinke, 2020, proposition 12).
    """
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def delta_of(divergence: float, order: int, epsilon: float) -> float:
    """The δ at ε of a mechanism with this Rényi divergence: ``converted``, solved for δ."""
    if not math.isfinite(divergence):
        return 1.0
    exponent = (order - 1) * (divergence + math.log1p(-1 / order) - epsilon) - math.log(order)
    return math.exp(min(0.0, exponent))


def divergence(event: SubsampledGaussian, kind: Relation, order: int) -> float:
    """The Rényi divergence of one step, at a whole-number order, between neighbouring collections.

    Guarantee. It is at least the divergence of the step's answers on any two neighbours, in either direction.

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


def expected_trials(shape: float, gamma: float) -> float:
    """E[K] of the truncated negative binomial distribution.

    >>> round(expected_trials(1.0, 0.25), 6)
    4.0
    """
    if shape == 0:
        return (1 / gamma - 1) / math.log(1 / gamma)
    return shape * (1 - gamma) / (gamma * (1 - gamma**shape))


def selection_divergence(event: PrivateSelection, order: int) -> float:
    """The Rényi divergence of a selection at ``order``, with the best λ'.

    Guarantee. It bounds that of the released trial, whatever the number of trials was (Papernot and Steinke, 2022).
    """
    trial = _trial_divergences(event.candidates)
    more, tail = 1 + event.shape, math.log(1 / event.gamma)
    second = min((1 - 1 / other) * trial[other] + tail / other for other in ORDERS)
    repeated = math.log(expected_trials(event.shape, event.gamma)) / (order - 1)
    return trial[order] + more * second + repeated


@lru_cache(maxsize=64)
def _trial_divergences(candidates: tuple[tuple[SubsampledGaussian, ...], ...]) -> dict[int, float]:
    """The largest divergence of a candidate's composed queries, at every order."""
    return {order: max(composed(events, order) for events in candidates) for order in ORDERS}


def composed(events: Sequence[SubsampledGaussian], order: int) -> float:
    """The Rényi divergence of all steps of these events, whatever the earlier answers were."""
    return sum(event.steps * divergence(event, Relation.ADD_OR_REMOVE, order) for event in events)


def selection_epsilon(event: PrivateSelection, delta: float) -> float:
    """The ε of a selection alone."""
    return min(converted(selection_divergence(event, order), order, delta) for order in ORDERS)


_VERSION = importlib.metadata.version("dp-accounting")
ACCOUNTANT = f"min(PLD with bounded rounding, RDP), under replacement PLD, of dp-accounting {_VERSION}"

_COARSE, _FINE = 1e-3, 1e-4
_MANY_STEPS = 10_000  # a coarse grid is loose for huge T
_HUGE, _HUGE_REPLACED = 50.0, 500.0  # above such an RDP the PLD's arrays explode; under replace-one RDP is loose
_TOLERANCE = 4e-3  # calibration stops within this fraction below the budget

_LEVELS = [number / 10 for number in range(201)]  # of ε, for trade-off curves
_RELATIONS = {
    Relation.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Relation.REPLACE: NeighboringRelation.REPLACE_ONE,
}


@dataclass(frozen=True)
class _Mechanism:
    """``steps`` Poisson-subsampled Gaussians; names and blocks do not matter to ε."""

    rate: float
    noise_multiplier: float
    sensitivity: float
    steps: int


@dataclass(frozen=True)
class _Composition:
    """Sorted and merged mechanisms, so that equal spending is computed once."""

    relation: Relation
    mechanisms: tuple[_Mechanism, ...]


def relation(events: Iterable[Event]) -> Relation:
    """The neighbouring relation under which the ε of these events holds."""
    kinds = {event.relation for event in events if isinstance(event, SubsampledGaussian)}
    return Relation.REPLACE if Relation.REPLACE in kinds else Relation.ADD_OR_REMOVE


def _renyi_divergences(events: Sequence[Event]) -> dict[int, float]:
    """The Rényi divergence, at every order, of a composition that holds a selection, which has no PLD."""
    if relation(events) is Relation.REPLACE or any(isinstance(event, RawAccess) for event in events):
        return dict.fromkeys(ORDERS, math.inf)
    total = dict.fromkeys(ORDERS, 0.0)
    for event in events:
        for order in ORDERS:
            if isinstance(event, PrivateSelection):
                total[order] += selection_divergence(event, order)
            elif isinstance(event, SubsampledGaussian):
                total[order] += event.steps * divergence(event, Relation.ADD_OR_REMOVE, order)
    return total


def _holds_selection(events: Sequence[Event]) -> bool:
    return any(isinstance(event, PrivateSelection) for event in events)


def _selection_epsilon(events: Sequence[Event], delta: float) -> float:
    found = _renyi_divergences(events)
    return max(0.0, min(converted(found[order], order, delta) for order in ORDERS))


def _composition(events: Iterable[Event]) -> _Composition | None:
    """None where raw access makes ε infinite."""
    events = merged(events)
    kind = relation(events)
    total: dict[tuple[float, float, float], int] = {}
    for event in events:
        if not isinstance(event, SubsampledGaussian):
            return None
        key = (event.sampling_rate, event.noise_multiplier, event.sensitivity(kind))
        total[key] = total.get(key, 0) + event.steps
    return _Composition(kind, tuple(_Mechanism(*key, steps) for key, steps in sorted(total.items())))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """RDP reports orders that did not converge; it leaves them out, which is valid, so users need not read it."""
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        absl_logging.set_verbosity(before)


def _gaussian(rate: float, noise_multiplier: float, steps: int) -> dp_accounting.DpEvent:
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    return dp_accounting.SelfComposedDpEvent(event, steps)


def _rdp(composition: _Composition) -> RdpAccountant:
    """Knows adding and removing only, so that the sensitivity is divided out beforehand."""
    accountant = RdpAccountant()
    for one in composition.mechanisms:
        accountant.compose(_gaussian(one.rate, one.noise_multiplier / one.sensitivity, one.steps))
    return accountant


@dataclass(frozen=True)
class _Losses:
    """A privacy loss distribution, and a bound on what rounding in Fourier transforms adds to or takes from any δ.

    dp-accounting rounds the distribution upwards where it discretises it, and composes by transforms of double
    precision, whose rounding it does not bound. In the Euclidean norm a transform of N points has a relative error of
    at most 8·log2 N units of rounding (Higham 2002, section 24.1). Transforms of probabilities have modulus at most 1,
    so that T-fold composition multiplies the error of x by T at most; a sum over N points errs by √N times the norm.
    """

    distribution: PrivacyLossDistribution
    error: float = 0.0

    @property
    def _masses(self) -> tuple[PLDPmf, ...]:
        return self.distribution._pmf_remove, self.distribution._pmf_add

    @property
    def points(self) -> int:
        return 2 * max(2, *(mass.size for mass in self._masses))

    @property
    def norm(self) -> float:
        """The Euclidean norm of the probabilities, at most 1."""
        return max(float(np.linalg.norm(getattr(mass, "_probs", 1.0))) for mass in self._masses) + 1e-9

    def epsilon(self, delta: float) -> float:
        """An upper bound; infinite where δ is within the rounding error."""
        return float(self.distribution.get_epsilon_for_delta(delta - self.error)) if delta > self.error else math.inf

    def deltas(self, levels: Sequence[float]) -> list[float]:
        return [min(1.0, float(one) + self.error) for one in self.distribution.get_delta_for_epsilon(levels)]


def _rounding(parts: Sequence[_Losses], whole: _Losses, steps: int) -> float:
    """The error of composing these distributions into ``whole``, where ``steps`` factors are multiplied.

    Guarantee. A δ read from the composed distribution differs from that of exact transforms by at most this.
    """
    points = max(one.points for one in (*parts, whole))
    transforms = 8 * math.log2(points) * (steps * max(one.norm for one in parts) + whole.norm)
    return 2.0**-53 * math.sqrt(points) * (transforms + 8 * steps * whole.norm)


@functools.lru_cache(maxsize=32)
def _mechanism_pld(one: _Mechanism, neighbours: Relation, grid: float) -> _Losses:
    """Of all steps. A calibration changes the noise of some mechanisms and asks for the others again."""
    options = {"value_discretization_interval": grid, "neighboring_relation": _RELATIONS[neighbours]}
    if one.rate == 1:
        return _Losses(from_gaussian_mechanism(one.noise_multiplier / math.sqrt(one.steps), **options))
    once = _Losses(from_gaussian_mechanism(one.noise_multiplier, sampling_prob=one.rate, **options))
    found = _Losses(once.distribution.self_compose(one.steps))
    return _Losses(found.distribution, _rounding([once], found, one.steps))


def _pld(composition: _Composition, grid: float) -> _Losses:
    """Knows both relations and their sensitivities, for vectors of norm 1."""
    found: _Losses | None = None
    for one in composition.mechanisms:
        more = _mechanism_pld(one, composition.relation, grid)
        if found is None:
            found = more
            continue
        both = _Losses(found.distribution.compose(more.distribution))
        found = _Losses(both.distribution, found.error + more.error + _rounding([found, more], both, 2))
    return found or _Losses(identity(grid))


def _renyi_epsilon(composition: _Composition, delta: float) -> float:
    """By Rényi divergences at whole orders, which are proved under replacement as well."""
    total = dict.fromkeys(ORDERS, 0.0)
    for one in composition.mechanisms:
        event = SubsampledGaussian("sum", (Block("sum", one.noise_multiplier),), one.rate, one.steps)
        for order in ORDERS:
            total[order] += one.steps * divergence(event, composition.relation, order)
    return min(converted(total[order], order, delta) for order in ORDERS)


@functools.lru_cache(maxsize=4096)
def _epsilon(composition: _Composition, delta: float, grid: float) -> float:
    if not composition.mechanisms:
        return 0.0
    if max(one.steps for one in composition.mechanisms) > _MANY_STEPS:
        grid = min(grid, _FINE)
    with _quiet():
        renyi = _rdp(composition).get_epsilon(delta)
        # Under replace-one, RDP at twice the sensitivity is not proved to be an upper bound: it only guards the PLD.
        proved = composition.relation is Relation.ADD_OR_REMOVE
        if not renyi <= (_HUGE if proved else _HUGE_REPLACED):
            return float(renyi) if proved else math.inf
        tight = _pld(composition, grid).epsilon(delta)
        if not proved:
            renyi = _renyi_epsilon(composition, delta) if tight == math.inf else math.inf
        return max(0.0, float(min(renyi, tight)))


def epsilon(events: Iterable[Event], delta: float) -> float:
    """The ε that holds at ``delta`` for everything in ``events`` together; infinite after raw access.

    Guarantee. It is an upper bound for adaptive composition of events that were fixed before the data was touched.
    """
    events = tuple(events)
    if _holds_selection(events):
        return _selection_epsilon(events, delta)
    composition = _composition(events)
    return math.inf if composition is None else _epsilon(composition, delta, _FINE)


def rough_epsilon(events: Iterable[Event], delta: float) -> float:
    """A valid upper bound from the coarse grid, cheap enough for a progress bar."""
    events = tuple(events)
    if _holds_selection(events):
        return _selection_epsilon(events, delta)
    composition = _composition(events)
    return math.inf if composition is None else _epsilon(composition, delta, _COARSE)


@functools.lru_cache(maxsize=256)
def _trade_off(composition: _Composition) -> tuple[tuple[float, float], ...]:
    if not composition.mechanisms:
        return ((0.0, 0.0),)
    with _quiet():
        if not _rdp(composition).get_epsilon(1e-5) <= _HUGE:
            return ((0.0, 1.0),)
        return tuple(zip(_LEVELS, _pld(composition, _COARSE).deltas(_LEVELS), strict=True))


def trade_off(events: Iterable[Event]) -> tuple[tuple[float, float], ...]:
    """δ(ε) at ε = 0, 0.1, … 20, from which every test of one unit's presence is bounded."""
    events = tuple(events)
    if _holds_selection(events):
        found = _renyi_divergences(events)
        return tuple((level, min(1.0, *(delta_of(found[k], k, level) for k in ORDERS))) for level in _LEVELS)
    composition = _composition(events)
    return ((0.0, 1.0),) if composition is None else _trade_off(composition)


def calibrate(events: Sequence[SubsampledGaussian], budget: Budget) -> tuple[SubsampledGaussian, ...]:
    """The events with just so much noise that together they cost at most the budget, and at least 99 % of it.

    One factor scales every noise that is not fixed, so that the blocks keep the proportions the method gave them.

    Guarantee. The returned events cost at most the budget by ``epsilon``, on the fine grid.
    """
    fixed_cost = epsilon((event for event in events if all(block.fixed for block in event.blocks)), budget.delta)
    if fixed_cost > budget.epsilon:
        raise BudgetExceeded(
            f"the parts with fixed noise cost ε {fixed_cost:.4g} at δ {budget.delta:g}, more than the budget of "
            f"{budget.epsilon:g}: raise the budget or the noise"
        )
    if all(block.fixed for event in events for block in event.blocks):
        return tuple(events)

    def cost(factor: float, grid: float) -> float:
        composition = _composition(event.scaled(factor) for event in events)
        return math.inf if composition is None else _epsilon(composition, budget.delta, grid)

    def search(grid: float, high: float) -> float:
        """A factor within the budget and within the tolerance of it, by doubling steps and then by halving them."""
        while cost(high, grid) > budget.epsilon:
            high *= 2
            if high > 1e7:
                raise BudgetExceeded(
                    f"no amount of noise brings these events below ε {budget.epsilon:g} at δ {budget.delta:g}; "
                    "the parts with fixed noise leave too little"
                )
        low, ratio = high, 1.01
        while cost(high, grid) < (1 - _TOLERANCE) * budget.epsilon and high > 1e-9:
            if low == high:
                low, ratio = high / ratio, ratio * ratio
                if cost(low, grid) <= budget.epsilon:
                    high = low
                continue
            if high / low < 1 + 1e-4:
                break
            middle = math.sqrt(low * high)
            if cost(middle, grid) <= budget.epsilon:
                high = middle
            else:
                low = middle
        return high

    factor = search(_FINE, search(_COARSE, 1.0))  # the fine grid decides
    return tuple(event.scaled(factor) for event in events)


FILTER = "the Rényi filter of Feldman and Zrnic (2021), for runs that were chosen after reading earlier releases"


def filter_order(epsilon: float, delta: float) -> int:
    """The order at which the most Gaussian noise-to-signal fits below (ε, δ): Gaussians cost α·s, see ``converted``."""
    return max(ORDERS, key=lambda order: (epsilon - converted(0.0, order, delta)) / order)


def filtered_epsilon(events: Iterable[Event], order: int, delta: float) -> float:
    """The ε of these events together.

    Guarantee. It is an upper bound however each event was chosen after the answers to the earlier ones.
    """
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


@dataclass(frozen=True)
class Plan:
    """Calibrated events and what they cost together. A Curator answers what the plan lists and nothing else."""

    budget: AnyBudget
    events: tuple[SubsampledGaussian, ...]

    @classmethod
    def calibrated(cls, events: Sequence[SubsampledGaussian], budget: AnyBudget) -> Plan:
        """With the least noise that keeps the budget. Under NoGuarantee the noise stays as it was given."""
        if len({event.name for event in events}) != len(events):
            raise ValueError("each planned event needs a name of its own")
        if not events and isinstance(budget, Budget):
            raise BudgetExceeded(
                "nothing is planned that a Curator could answer: the method needs the raw records, whose cost is "
                "ε = ∞. It runs only under NoGuarantee(), or --no-guarantee"
            )
        return cls(budget, calibrate(events, budget) if isinstance(budget, Budget) else tuple(events))

    def event(self, name: str) -> SubsampledGaussian:
        for event in self.events:
            if event.name == name:
                return event
        raise LookupError(
            f"{name!r} is not in the plan, which lists {[event.name for event in self.events]}; "
            "a method lists every query before its first answer"
        )

    @property
    def epsilon(self) -> float:
        """What the events cost at the budget's δ."""
        return epsilon(self.events, self.budget.delta) if isinstance(self.budget, Budget) else float("inf")

    def __str__(self) -> str:
        """What it spends, and a line for each kind of query."""
        spent = (
            f"ε {self.epsilon:.4g} at δ {self.budget.delta:g}" if isinstance(self.budget, Budget) else "no guarantee"
        )
        rows = [("query", "steps", "sampling rate", "noise multiplier", "blocks")]
        for event in self.events:
            blocks = ", ".join(f"{block.name} {block.noise_multiplier:.4g}" for block in event.blocks)
            numbers = (str(event.steps), f"{event.sampling_rate:g}", f"{event.noise_multiplier:.4g}")
            rows.append((event.name, *numbers, blocks))
        return f"{spent}, {relation(self.events)} ({self.budget.unit})\n{aligned(rows)}"

    def to_json(self) -> dict[str, Any]:
        guaranteed = isinstance(self.budget, Budget)
        return {
            "budget": self.budget.to_json(),
            "epsilon": self.epsilon if guaranteed else None,
            "relation": relation(self.events),
            "accountant": ACCOUNTANT,
            "events": [event.to_json() for event in self.events],
        }
