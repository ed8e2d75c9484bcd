"""ε against values that were computed independently, and calibration that never goes over."""

from __future__ import annotations

import math

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato.privacy import Block, Budget, BudgetExceeded, Plan, RawAccess, SubsampledGaussian
from sfumato.privacy.accounting import calibrate, epsilon
from sfumato.release.plain_numbers import best_guess, most_recognised


def event(rate: float, noise: float, steps: int, name: str = "train") -> SubsampledGaussian:
    return SubsampledGaussian(name, (Block("gradient", noise),), sampling_rate=rate, steps=steps)


def test_epsilon_of_known_mechanisms() -> None:
    for rate, noise, steps, expected in (
        (0.1, 1.25, 300, 8.380),
        (0.1, 4.5, 300, 1.543),
        (0.1, 1.126, 300, 10.0),
        (0.1, 6.585, 300, 1.0),
    ):
        assert epsilon([event(rate, noise, steps)], 1e-5) == pytest.approx(expected, rel=2e-3)


def test_a_plain_gaussian_agrees_with_its_closed_form() -> None:
    # δ(ε) = Φ(1/2σ − εσ) − e^ε Φ(−1/2σ − εσ)
    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    noise = 2.0
    found = epsilon([event(1.0, noise, 1)], 1e-5)
    delta = phi(0.5 / noise - found * noise) - math.exp(found) * phi(-0.5 / noise - found * noise)
    assert delta == pytest.approx(1e-5, rel=0.02)
    assert best_guess([event(1.0, noise, 1)]) == pytest.approx(phi(0.5 / noise), abs=2e-4)


def test_blocks_that_share_a_batch_are_one_event() -> None:
    together = SubsampledGaussian("step", (Block("a", 0.956), Block("b", 0.956)), sampling_rate=0.02, steps=1000)
    assert epsilon([together], 1e-5) == pytest.approx(9.99, rel=2e-3)
    apart = [event(0.02, 0.956, 1000, "a"), event(0.02, 0.956, 1000, "b")]
    assert epsilon(apart, 1e-5) < 0.7 * epsilon([together], 1e-5)


def test_a_block_of_an_old_ledger_that_moves_by_two_counts_four_times() -> None:
    group = Block.from_json({"name": "group", "noise_multiplier": 2.0, "moves": 2.0, "fixed": False})
    assert group.noise_multiplier == pytest.approx(1.0)


def test_raw_access_costs_everything() -> None:
    assert epsilon([event(0.1, 5.0, 10), RawAccess("records", "as published")], 1e-5) == math.inf


def test_tiny_noise_answers_instead_of_hanging() -> None:
    assert epsilon([event(0.5, 0.01, 100)], 1e-5) > 1000


def test_calibration_finds_the_known_noise() -> None:
    for rate, steps, budget, expected in (
        (0.1, 300, 10.0, 1.126),
        (0.1, 300, 1.0, 6.585),
        (0.1, 1000, 10.0, 1.75),
        (256 / 60000, 2344, 10.0, 0.492),
    ):
        (found,) = calibrate([event(rate, 1.0, steps)], Budget(budget, 1e-5))
        assert found.noise_multiplier == pytest.approx(expected, rel=0.01)


@settings(max_examples=5, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    rate=st.floats(1e-3, 1.0),
    steps=st.integers(1, 3000),
    budget=st.floats(0.1, 20.0),
    delta=st.sampled_from([1e-4, 1e-5, 1e-6, 1e-8]),
    share=st.floats(0.3, 3.0),
)
def test_calibration_never_overshoots(rate: float, steps: int, budget: float, delta: float, share: float) -> None:
    two = SubsampledGaussian("step", (Block("a", 1.0), Block("b", share)), sampling_rate=rate, steps=steps)
    once = SubsampledGaussian("counts", (Block("counts", 200.0, fixed=True),))
    found = calibrate([two, once], Budget(budget, delta))
    cost = epsilon(found, delta)
    assert 0.99 * budget <= cost <= budget
    assert found[1] == once
    assert found[0].blocks[1].noise_multiplier / found[0].blocks[0].noise_multiplier == pytest.approx(share)


def test_calibration_where_the_coarse_grid_is_loose() -> None:
    """A small ε over many steps: the coarse grid asks for too much noise, and the fine one must find its way back."""
    asked = event(0.002, 5.0, 8000)
    budget = epsilon([asked], 1e-3)
    (found,) = calibrate([asked], Budget(budget, 1e-3))
    assert 0.99 * budget <= epsilon([found], 1e-3) <= budget
    assert found.noise_multiplier == pytest.approx(5.0, rel=0.01)


def test_fixed_noise_that_costs_too_much_is_refused() -> None:
    fixed = SubsampledGaussian("counts", (Block("counts", 0.5, fixed=True),))
    with pytest.raises(BudgetExceeded, match="fixed noise"):
        calibrate([fixed, event(0.1, 1.0, 10)], Budget(1.0, 1e-5))


def test_a_plan_refuses_two_events_of_one_name_and_unknown_questions() -> None:
    with pytest.raises(ValueError, match="name of its own"):
        Plan.calibrated([event(0.1, 1.0, 10), event(0.2, 1.0, 10)], Budget(1.0, 1e-5))
    with pytest.raises(LookupError, match="not in the plan"):
        Plan.calibrated([event(0.1, 1.0, 10)], Budget(1.0, 1e-5)).event("other")


def test_a_budget_must_make_sense() -> None:
    for epsilon_, delta in ((0, 1e-5), (-1, 1e-5), (math.inf, 1e-5), (math.nan, 1e-5), (1, 0), (1, 1)):
        with pytest.raises(ValueError):
            Budget(epsilon_, delta)


def test_delta_is_held_against_the_declared_size() -> None:
    with pytest.raises(ValueError, match="not below"):
        Budget(1, 1e-3).check_delta(1000)
    with pytest.warns(UserWarning, match="above"):
        Budget(1, 2e-4).check_delta(1000)
    Budget(1, 1e-5).check_delta(1000)


def test_the_odds_of_a_suspicion_are_those_of_the_gaussian_test() -> None:
    """The best test of one Gaussian against its shift by 1/σ is known; a bound may be above it, hardly, never below."""
    for noise in (0.5, 1.0, 2.0):
        for false_alarms in (0.001, 0.01, 0.1):
            exact = stats.norm.cdf(stats.norm.ppf(false_alarms) + 1 / noise)
            assert exact <= most_recognised([event(1.0, noise, 1)], false_alarms) <= exact * 1.01
            assert most_recognised([], false_alarms) == pytest.approx(false_alarms)
            assert most_recognised([RawAccess("all", "a test")], false_alarms) == 1.0
