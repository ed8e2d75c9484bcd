"""From events to ε, and from a budget to noise. The only module that knows dp-accounting.

ε is the smaller of two valid bounds: the privacy loss distribution (PLD, tight) and Rényi DP (robust). Both are upper
bounds for adaptive composition of Poisson-subsampled Gaussians, adding or removing one unit; where shards speak, also
replacing one, which covers that a unit can turn its shard's vector around.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence

import dp_accounting
import numpy as np
from absl import logging as absl_logging
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from sfumato.privacy.budget import Budget, BudgetExceeded
from sfumato.privacy.events import Event, RawAccess, SubsampledGaussian, merged

ACCOUNTANT = f"min(PLD, RDP), under replacement PLD, of dp-accounting {importlib.metadata.version('dp-accounting')}"

_COARSE, _FINE = 1e-3, 1e-4
_MANY_STEPS = 10_000  # a coarse grid is loose for huge T
_HUGE, _HUGE_TURNED = 50.0, 500.0  # above such an RDP the PLD's arrays explode; of turned vectors it says too much
_TOLERANCE = 4e-3  # calibration stops within this fraction below the budget

# dp-accounting evaluates every mechanism as (rate, σ_eff, steps); names and block structure do not matter to ε.
_Mechanisms = tuple[tuple[float, float, int, NeighboringRelation], ...]


def relation(events: Iterable[Event]) -> str:
    """Between which collections the ε of these events holds."""
    return "add, remove or replace one unit" if _replaced(events) else "add or remove one unit"


def _replaced(events: Iterable[Event]) -> bool:
    return any(isinstance(event, SubsampledGaussian) and event.shards is not None for event in events)


def _mechanisms(events: Iterable[Event]) -> _Mechanisms | None:
    """Sorted and merged, so that equal spending is computed once; None where raw access makes ε infinite."""
    total: dict[tuple[float, float], int] = {}
    events = merged(events)
    kind = NeighboringRelation.REPLACE_ONE if _replaced(events) else NeighboringRelation.ADD_OR_REMOVE_ONE
    for event in events:
        if isinstance(event, RawAccess):
            return None
        key = (event.sampling_rate, event.noise_multiplier)
        total[key] = total.get(key, 0) + event.steps
    return tuple((rate, noise, steps, kind) for (rate, noise), steps in sorted(total.items()))


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


def _composed(accountant: dp_accounting.PrivacyAccountant, mechanisms: _Mechanisms) -> dp_accounting.PrivacyAccountant:
    for rate, noise, steps, kind in mechanisms:
        # RDP, unlike PLD, samples for adding and removing only: there, replacement is a step twice as far.
        far = 2.0 if kind == NeighboringRelation.REPLACE_ONE and isinstance(accountant, RdpAccountant) else 1.0
        gaussian = dp_accounting.GaussianDpEvent(noise / far)
        event = gaussian if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
    return accountant


def _pld(mechanisms: _Mechanisms, grid: float) -> dp_accounting.PrivacyAccountant:
    return _composed(PLDAccountant(mechanisms[0][3], value_discretization_interval=grid), mechanisms)


@functools.lru_cache(maxsize=4096)
def _epsilon(mechanisms: _Mechanisms, delta: float, grid: float) -> float:
    if not mechanisms:
        return 0.0
    if max(steps for _, _, steps, _ in mechanisms) > _MANY_STEPS:
        grid = min(grid, _FINE)
    with _quiet():
        renyi = _composed(RdpAccountant(), mechanisms).get_epsilon(delta)
        # Under replacement nobody has proved the RDP of a step twice as far an upper bound: it only guards the PLD.
        proved = mechanisms[0][3] == NeighboringRelation.ADD_OR_REMOVE_ONE
        if not renyi <= (_HUGE if proved else _HUGE_TURNED):
            return float(renyi) if proved else math.inf
        tight = _pld(mechanisms, grid).get_epsilon(delta)
        return max(0.0, float(min(renyi, tight) if proved else tight))


def epsilon(events: Iterable[Event], delta: float) -> float:
    """The ε that holds at ``delta`` for everything in ``events`` together; infinite after raw access."""
    mechanisms = _mechanisms(events)
    return math.inf if mechanisms is None else _epsilon(mechanisms, delta, _FINE)


def rough_epsilon(events: Iterable[Event], delta: float) -> float:
    """A valid upper bound from the coarse grid, cheap enough for a progress bar."""
    mechanisms = _mechanisms(events)
    return math.inf if mechanisms is None else _epsilon(mechanisms, delta, _COARSE)


@functools.lru_cache(maxsize=256)
def _trade_off(mechanisms: _Mechanisms) -> tuple[tuple[float, float], ...]:
    if not mechanisms:
        return ((0.0, 0.0),)
    with _quiet():
        if not _composed(RdpAccountant(), mechanisms).get_epsilon(1e-5) <= _HUGE:
            return ((0.0, 1.0),)
        levels = [number / 10 for number in range(201)]
        return tuple(zip(levels, map(float, _pld(mechanisms, _COARSE).get_delta(levels)), strict=True))


def trade_off(events: Iterable[Event]) -> tuple[tuple[float, float], ...]:
    """δ(ε) at ε = 0, 0.1, … 20: everything that a test of one unit's presence is bound by."""
    mechanisms = _mechanisms(events)
    return ((0.0, 1.0),) if mechanisms is None else _trade_off(mechanisms)


def calibrate(events: Sequence[SubsampledGaussian], budget: Budget) -> tuple[SubsampledGaussian, ...]:
    """The events with just so much noise that together they cost at most the budget, and at least 99 % of it.

    One factor scales every noise that is not fixed, so that the blocks keep the proportions the method gave them.
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
        mechanisms = _mechanisms(event.scaled(factor) for event in events)
        return _epsilon(mechanisms or (), budget.delta, grid)

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

    factor = search(_FINE, search(_COARSE, 1.0))  # the fine grid has the last word
    return tuple(event.scaled(factor) for event in events)
