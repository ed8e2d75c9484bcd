"""Private selection: the best of a random number of trials, and what it costs (Papernot and Steinke, 2022).

A trial picks a candidate with public probabilities and answers with a model and a noisy score. The number of trials K
follows a truncated negative binomial distribution with shape η and parameter γ; only the trial with the highest score
is released. If a trial has Rényi divergence at most ε at order λ and at most ε' at order λ', then the selection has at
most (theorem 2)

    ε + (1 + η)·(1 − 1/λ')·ε' + (1 + η)·log(1/γ)/λ' + log(E[K])/(λ − 1)    at order λ, for every λ' ≥ 1.

The trial's answer names the candidate, which is chosen without the data, so that its divergence is at most the largest
of the candidates'. All of this is for adding or removing one unit.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sfumato.privacy.accounting import composed, expected_trials, selection_epsilon
from sfumato.privacy.budget import Budget, BudgetExceeded
from sfumato.privacy.events import PrivateSelection, SubsampledGaussian

_REFERENCE_ORDER = 16  # at which candidates are brought to the same divergence


def gamma_for(trials: float, shape: float) -> float:
    """The γ whose expected number of trials is ``trials``."""
    if not 1 < trials <= 1000:
        raise ValueError(f"the expected number of trials must be above 1 and at most 1000, not {trials:g}")
    low, high = 1e-9, 1 - 1e-9
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if expected_trials(shape, middle) > trials else (low, middle)
    return high


def draw_trials(shape: float, gamma: float, uniform: float | None = None) -> int:
    """K by inversion of the distribution function. ``uniform`` is given by tests only; K is never released."""
    left = secrets.SystemRandom().random() if uniform is None else uniform
    scale = 1 / math.log(1 / gamma) if shape == 0 else shape / (gamma**-shape - 1)
    probability, trials = scale * (1 - gamma), 1
    while left >= probability and probability > 1e-300:
        left -= probability
        probability *= (1 - gamma) * (trials + shape) / (trials + 1)
        trials += 1
    return trials


@dataclass(frozen=True)
class Scaling:
    """The factor on the noise of a candidate, and whether the noise that the method fixed is scaled as well."""

    factor: float
    with_fixed: bool = False

    def of(self, events: Sequence[SubsampledGaussian]) -> tuple[SubsampledGaussian, ...]:
        """The events with scaled noise."""
        free = [_freed(event) for event in events] if self.with_fixed else events
        return tuple(event.scaled(self.factor) for event in free)


def calibrated_selection(
    candidates: Sequence[Sequence[SubsampledGaussian]], budget: Budget, *, trials: float, shape: float = 0.0
) -> tuple[PrivateSelection, tuple[Scaling, ...]]:
    """The selection with just so much noise in each candidate that it keeps the budget, and each one's scaling.

    The noise of each candidate is scaled so that all have the same divergence at one order.
    """
    gamma = gamma_for(trials, shape)

    def at(level: float) -> tuple[PrivateSelection, tuple[Scaling, ...]]:
        scalings = tuple(_scaling(events, level) for events in candidates)
        scaled = tuple(scaling.of(events) for scaling, events in zip(scalings, candidates, strict=True))
        return PrivateSelection("selection", scaled, shape, gamma), scalings

    low, high = 1e-6, 1e3
    if selection_epsilon(at(low)[0], budget.delta) > budget.epsilon:
        raise BudgetExceeded(
            f"a selection among {trials:g} trials cannot cost ε {budget.epsilon:g} or less at δ {budget.delta:g}: "
            "choose fewer trials or a larger ε"
        )
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        within = selection_epsilon(at(middle)[0], budget.delta) <= budget.epsilon
        low, high = (middle, high) if within else (low, middle)
    return at(low)


def _scaling(events: Sequence[SubsampledGaussian], level: float) -> Scaling:
    """The scaling at which the divergence at the reference order is at most ``level``.

    Noise that the method fixed stays as it is, unless it would take more than half.
    """
    fixed = [event for event in events if all(block.fixed for block in event.blocks)]
    with_fixed = len(fixed) == len(events) or composed(fixed, _REFERENCE_ORDER) > level / 2
    low, high = 1e-4, 1e6
    while high / low > 1.0005:
        middle = math.sqrt(low * high)
        within = composed(Scaling(middle, with_fixed).of(events), _REFERENCE_ORDER) <= level
        low, high = (low, middle) if within else (middle, high)
    return Scaling(high, with_fixed)


def _freed(event: SubsampledGaussian) -> SubsampledGaussian:
    return replace(event, blocks=tuple(replace(block, fixed=False) for block in event.blocks))
