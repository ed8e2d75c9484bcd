"""The cost of private selection, against the published formula and another implementation of it."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from sfumato.privacy import Block, Budget, BudgetExceeded, Ledger, SubsampledGaussian, selection
from sfumato.privacy.accounting import (
    ORDERS,
    composed,
    epsilon,
    expected_trials,
    filtered_epsilon,
    selection_divergence,
    selection_epsilon,
    trade_off,
)
from sfumato.privacy.events import PrivateSelection, event_from_json, merged
from sfumato.privacy.selection import calibrated_selection, draw_trials, gamma_for

TRAINING = SubsampledGaussian("training", (Block("gradient", 2.0),), sampling_rate=0.05, steps=200)
COUNT = SubsampledGaussian("score", (Block("score", 20.0),))


def test_theorem_2_for_a_gaussian() -> None:
    """A Gaussian with noise σ has divergence λ/(2σ²), so that the theorem can be written out."""
    for shape in (0.0, 0.5, 1.0):
        sigma, gamma, order = 5.0, 0.1, 20
        event = PrivateSelection("selection", ((SubsampledGaussian("sum", (Block("sum", sigma),)),),), shape, gamma)
        trials = expected_trials(shape, gamma)
        written = order / (2 * sigma**2) + math.log(trials) / (order - 1)
        written += min(
            (1 + shape) * ((1 - 1 / other) * other / (2 * sigma**2) + math.log(1 / gamma) / other) for other in ORDERS
        )
        assert selection_divergence(event, order) == pytest.approx(written)


def test_another_implementation_agrees() -> None:
    for trials in (3.0, 20.0):
        for shape in (0.0, 1.0):
            event = PrivateSelection("selection", ((TRAINING, COUNT),), shape, gamma_for(trials, shape))
            inner = dp_accounting.ComposedDpEvent(
                [
                    dp_accounting.SelfComposedDpEvent(
                        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(2.0)), 200
                    ),
                    dp_accounting.GaussianDpEvent(20.0),
                ]
            )
            other = RdpAccountant(orders=list(ORDERS))
            other.compose(dp_event.RepeatAndSelectDpEvent(inner, trials, shape))
            assert selection_epsilon(event, 1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=0.01)


def test_the_largest_candidate_counts() -> None:
    cheap, dear = TRAINING.scaled(3.0), TRAINING
    alone = PrivateSelection("selection", ((dear,),), 0.0, 0.1)
    both = PrivateSelection("selection", ((cheap,), (dear,)), 0.0, 0.1)
    assert selection_epsilon(both, 1e-5) == selection_epsilon(alone, 1e-5)
    assert selection_epsilon(PrivateSelection("selection", ((cheap,),), 0.0, 0.1), 1e-5) < selection_epsilon(both, 1e-5)


def test_a_selection_costs_more_than_its_best_trial_and_less_than_all() -> None:
    event = PrivateSelection("selection", ((TRAINING,),), 0.0, gamma_for(10.0, 0.0))
    assert epsilon((TRAINING,), 1e-5) < epsilon((event,), 1e-5) < epsilon((TRAINING.times(2000),), 1e-5)


def test_the_number_of_trials_has_its_distribution() -> None:
    for shape in (0.0, 0.5, 1.0):
        gamma = gamma_for(5.0, shape)
        assert expected_trials(shape, gamma) == pytest.approx(5.0)
        drawn = [draw_trials(shape, gamma, uniform) for uniform in (np.arange(20_000) + 0.5) / 20_000]
        assert np.mean(drawn) == pytest.approx(5.0, rel=0.02) and min(drawn) == 1
        one = 1 / math.log(1 / gamma) if shape == 0 else shape / (gamma**-shape - 1)
        assert np.mean(np.equal(drawn, 1)) == pytest.approx(one * (1 - gamma), abs=1e-3)


def test_calibration_keeps_the_budget_and_uses_it() -> None:
    other = SubsampledGaussian("training", (Block("gradient"),), sampling_rate=0.2, steps=50)
    count = SubsampledGaussian("score", (Block("score", 30.0, fixed=True),))
    candidates = ((TRAINING, count), (other, count))
    found, scalings = calibrated_selection(candidates, Budget(epsilon=2, delta=1e-5), trials=4)
    assert 1.9 < epsilon((found,), 1e-5) <= 2
    for events, scaling, scaled in zip(candidates, scalings, found.candidates, strict=True):
        assert scaling.of(events) == scaled
    with pytest.raises(BudgetExceeded, match="fewer trials"):
        calibrated_selection(candidates, Budget(epsilon=0.01, delta=1e-5), trials=50)


def test_noise_that_the_method_fixed_is_scaled_where_it_would_take_more_than_half() -> None:
    for share, scaled in ((0.4, False), (0.6, True), (1.5, True)):
        count = SubsampledGaussian("score", (Block("score", 20.0, fixed=True),))
        taken = composed([count], selection._REFERENCE_ORDER)
        assert selection._scaling((TRAINING, count), taken / share).with_fixed is scaled


def test_two_equal_selections_are_two() -> None:
    event = PrivateSelection("selection", ((TRAINING,),), 0.0, 0.1)
    assert len(merged((event, event))) == 2
    assert epsilon((event, event), 1e-5) > epsilon((event,), 1e-5) + 0.1
    assert filtered_epsilon((event, event), 8, 1e-5) > filtered_epsilon((event,), 8, 1e-5)


def test_the_trade_off_curve_meets_epsilon() -> None:
    event = PrivateSelection("selection", ((TRAINING,),), 0.0, 0.1)
    spent = epsilon((event,), 1e-5)
    curve = dict(trade_off((event,)))
    assert list(curve) == pytest.approx(np.linspace(0.0, 20.0, 201))
    above = min(level for level in curve if level >= spent)
    assert curve[above] <= 1e-5 * 1.01 and curve[0.0] <= 1


def test_a_ledger_reserves_and_charges_it_and_reads_it_back() -> None:
    event, _ = calibrated_selection(((TRAINING, COUNT),), Budget(epsilon=1, delta=1e-5), trials=3)
    assert event_from_json(event.to_json()) == event
    ledger = Ledger(None, limit=Budget(epsilon=1, delta=1e-5))
    run = ledger.start_run(method="dp-merf", variant="certified", seeded=False)
    ledger.reserve(run, (event,))
    ledger.charge(run, event)
    assert 0.9 < ledger.spent() <= 1
    with pytest.raises(BudgetExceeded):
        ledger.charge(run, event)
    with pytest.raises(BudgetExceeded):
        ledger.reserve(run, (event,))


def test_shards_are_refused() -> None:
    sharded = SubsampledGaussian("training", (Block("vectors"),), shards=10)
    with pytest.raises(ValueError, match="adding or removing"):
        PrivateSelection("selection", ((sharded,),), 0.0, 0.1)
