"""The limit across adaptively chosen runs, and Rényi divergences against numerical integration."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from sfumato.privacy import Block, Budget, BudgetExceeded, Ledger, NoGuarantee, Relation, SubsampledGaussian
from sfumato.privacy.accounting import calibrate, divergence, epsilon, filter_order, filtered_epsilon
from sfumato.privacy.events import RawAccess
from sfumato.privacy.ledger import committed_events

BUDGET = Budget(1.0, 1e-5)


def event(noise: float, rate: float = 1.0, steps: int = 1, shards: int | None = None) -> SubsampledGaussian:
    return SubsampledGaussian("train", (Block("sum", noise),), sampling_rate=rate, steps=steps, shards=shards)


def spend(ledger: Ledger, one: SubsampledGaussian) -> None:
    run = ledger.start_run(method="m", variant="v", seeded=False)
    ledger.reserve(run, [one])
    ledger.charge(run, one)


def test_divergences_of_adding_and_removing_agree_with_another_implementation() -> None:
    for rate, noise in ((1.0, 2.0), (0.1, 1.1), (0.004, 0.7)):
        for order in (2, 5, 24):
            gaussian = GaussianDpEvent(noise)
            other = gaussian if rate == 1 else PoissonSampledDpEvent(rate, gaussian)
            accountant = RdpAccountant(orders=[order]).compose(SelfComposedDpEvent(other, 40))
            expected = accountant.get_epsilon(1e-5)
            assert filtered_epsilon([event(noise, rate, 40)], order, 1e-5) == pytest.approx(
                max(0.0, expected), rel=1e-6
            )


def test_the_divergence_of_replacing_is_an_upper_bound() -> None:
    """(1 − q) N(0) + q N(+1) against (1 − q) N(0) + q N(−1), by numerical integration."""
    for rate, noise in ((0.5, 2.0), (0.1, 1.1), (0.9, 3.0)):
        for order in (2, 5, 16):
            values = np.linspace(-40 * noise - 4 * order, 40 * noise + 4 * order, 400_001)

            away = {mean: -np.square(values - mean) / (2 * noise**2) for mean in (-1.0, 0.0, 1.0)}
            above, below = (np.logaddexp(math.log1p(-rate) + away[0], math.log(rate) + away[m]) for m in (1.0, -1.0))
            cell = math.log((values[1] - values[0]) / (noise * math.sqrt(2 * math.pi)))
            exact = np.logaddexp.reduce(order * above + (1 - order) * below) + cell
            bound = divergence(event(noise, rate, shards=3), Relation.REPLACE, order)
            assert float(exact) / (order - 1) <= bound * (1 + 1e-9)


def test_the_divergence_of_replacing_without_sampling_is_that_of_gaussians_two_clip_norms_apart() -> None:
    for order in (2, 5, 16):
        every, nearly = (divergence(event(3.0, rate, shards=3), Relation.REPLACE, order) for rate in (1.0, 1 - 1e-12))
        assert every == pytest.approx(order * 2.0**2 / (2 * 3.0**2))
        assert nearly == pytest.approx(every)


def test_runs_chosen_after_earlier_answers_are_refused_where_the_accountant_would_admit_them() -> None:
    """Two halves of the budget by the tight accountant cost more than it when the second is chosen adaptively."""
    (whole,) = calibrate([event(1.0, steps=2)], BUDGET)
    half = whole.times(1)
    assert epsilon([half, half], BUDGET.delta) <= BUDGET.epsilon
    ledger = Ledger(None, BUDGET)
    spend(ledger, half)
    with pytest.raises(BudgetExceeded, match="refused"):
        spend(ledger, half)


def test_one_run_may_spend_the_whole_budget_and_nothing_comes_after_it() -> None:
    (whole,) = calibrate([event(1.0, 0.1, 100)], BUDGET)
    ledger = Ledger(None, BUDGET)
    spend(ledger, whole)
    assert ledger.spent() == epsilon([whole], BUDGET.delta) <= 1.0
    with pytest.raises(BudgetExceeded):
        spend(ledger, event(1e3))


def test_several_runs_fit_into_the_filter() -> None:
    ledger = Ledger(None, BUDGET)
    admitted = 0
    with pytest.raises(BudgetExceeded):
        for _ in range(100):
            spend(ledger, event(16.0))
            admitted += 1
    together = event(16.0, steps=admitted)
    assert epsilon([together], BUDGET.delta) < ledger.spent() <= 1.0
    # What adaptivity costs here: the filter admits at least 80 % of what a plan made in advance could hold.
    tight = next(n for n in range(1, 200) if epsilon([event(16.0, steps=n)], BUDGET.delta) > 1.0) - 1
    assert 0.8 * tight <= admitted < tight


def test_the_order_is_fixed_when_the_ledger_is_created(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l", BUDGET) as ledger:
        assert ledger._entries[0]["order"] == filter_order(1.0, 1e-5)
    with Ledger(tmp_path / "open", NoGuarantee()) as ledger:
        assert ledger._entries[0]["order"] is None
    assert 2 <= filter_order(10.0, 1e-5) < filter_order(1.0, 1e-5) < filter_order(0.1, 1e-5)


def test_nothing_costs_nothing_and_raw_access_everything() -> None:
    assert filtered_epsilon([], 8, 1e-5) == 0.0
    assert filtered_epsilon([RawAccess("records", "as published")], 8, 1e-5) == math.inf


def started(ledger: Ledger, *plan: SubsampledGaussian) -> str:
    facts = {"plan": {"events": [one.to_json() for one in plan]}}
    run = ledger.start_run(method="m", variant="v", seeded=False, facts=facts)
    ledger.reserve(run, plan)
    return run


def test_a_first_run_that_was_stopped_early_makes_no_room_for_a_second(tmp_path: Path) -> None:
    """The first query's answer decides between the rest of the plan, which shows a unit with probability 9e-6, and
    another run. Each way keeps (1, 1e-5) alone; the choice between them has a δ of 1.1e-5 at ε 1.
    """
    first, rest = replace(event(5.0), name="first"), replace(event(0.16, 9e-6), name="rest")
    assert epsilon([first, rest], BUDGET.delta) < 1.0
    with Ledger(tmp_path / "l", BUDGET) as ledger:
        run = started(ledger, first, rest)
        ledger.charge(run, first)
    with Ledger(tmp_path / "l") as ledger:
        assert filtered_epsilon([first, event(6.9)], ledger.entries()[0]["order"], BUDGET.delta) < 1.0
        with pytest.raises(BudgetExceeded, match="first run"):
            spend(ledger, event(6.9))
        ledger.reserve(run, [rest])  # it may go on
        ledger.charge(run, rest)
        assert ledger.spent() == epsilon([first, rest], BUDGET.delta)
    with Ledger(tmp_path / "roomy", Budget(2.0, 1e-5)) as ledger:
        ledger.charge(started(ledger, event(5.0, steps=2)), event(5.0))
        spend(ledger, event(6.9))  # a first plan within the filter leaves room for others


def test_a_release_costs_its_whole_plan_even_if_it_stopped_early() -> None:
    ledger = Ledger(None, BUDGET)
    run = started(ledger, event(30.0, steps=50))
    ledger.charge(run, event(30.0, steps=10))
    assert ledger.release_epsilon(run, BUDGET.delta) == epsilon([event(30.0, steps=50)], BUDGET.delta)
    assert ledger.release_events(run) == (event(30.0, steps=10),) == ledger.events()


def test_the_plan_counts_where_fewer_steps_were_charged_and_the_charges_where_more_were() -> None:
    entries = [
        {"kind": "run", "run": "r", "plan": {"events": [event(2.0, 0.1, 30).to_json()]}},
        {"kind": "charge", "run": "r", "event": event(2.0, 0.1, 20).to_json()},
    ]
    assert committed_events(entries, "r") == (event(2.0, 0.1, 30),)
    assert committed_events([*entries, entries[1]], "r") == (event(2.0, 0.1, 40),)
    other = {"kind": "charge", "run": "r", "event": event(3.0).to_json()}
    assert set(committed_events([*entries, other], "r")) == {event(2.0, 0.1, 30), event(3.0)}
