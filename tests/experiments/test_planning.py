"""The expected use follows from public facts and the committed measurements."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from sfumato.experiments.results import ResultSet
from sfumato.methods import METHODS, find
from sfumato.planning.expected_use import (
    PublicFacts,
    Use,
    expected_share,
    gaussian_mu,
    points_of,
    signal_to_noise,
    table_facts,
    table_rows,
    units_needed,
)
from sfumato.planning.plan import TIME_LIMIT, choose_method, plan_all, use_warning
from sfumato.privacy import Block, SubsampledGaussian
from sfumato.privacy.accounting import epsilon

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def facts(**changes: float) -> PublicFacts:
    return PublicFacts(**({"declared_size": 60_000, "size": 28, "classes": 10, "epsilon": 1.0} | changes))  # type: ignore[arg-type]


def test_mu_is_that_of_the_gaussian_mechanism() -> None:
    for budget in (0.5, 1.0, 10.0):
        event = SubsampledGaussian("sum", (Block("sum", 1 / gaussian_mu(budget, 1e-5)),))
        assert epsilon((event,), 1e-5) == pytest.approx(budget, rel=0.01)


def test_every_row_of_the_table_is_in_its_result_file() -> None:
    for row in table_rows():
        found = ResultSet.load(RESULTS / f"{row['result']}.json").rows
        values = [
            one.values["CNN"].mean
            for one in found
            if (one.method, one.data.name, one.epsilon) == (row["method"], row["data"], row["epsilon"])
            and (one.data.records or row["images"]) == row["images"]
            and "CNN" in one.values
        ]
        assert any(round(value, 2) == pytest.approx(row["accuracy"], abs=0.006) for value in values), row


def test_no_row_of_the_table_is_on_the_data_that_predictions_are_compared_on() -> None:
    assert not any("fashion" in row["data"] for row in table_rows())


def test_more_images_more_epsilon_fewer_classes_and_smaller_images_help() -> None:
    base = signal_to_noise(facts())
    assert signal_to_noise(facts(declared_size=120_000)) == pytest.approx(2 * base)
    assert signal_to_noise(facts(epsilon=10.0)) > base
    assert signal_to_noise(facts(classes=20)) == pytest.approx(base / 2)
    assert signal_to_noise(facts(size=56)) == pytest.approx(base / 2)


def test_the_expected_share_rises_with_the_ratio_and_meets_the_table() -> None:
    for method in [name for name in METHODS if points_of(name)]:
        shares = [expected_share(method, ratio) or 0.0 for ratio in np.geomspace(1, 1e6, 200)]
        assert all(0 <= low <= high <= 1 for low, high in itertools.pairwise(shares))
        for point in points_of(method):
            assert expected_share(method, point.ratio) == pytest.approx(min(1.0, max(0.0, point.share)), abs=1e-9)


def test_every_certified_method_has_a_row_and_a_cost() -> None:
    rows = plan_all(facts())
    assert {row.method for row in rows} == {name for name in METHODS if find(name).certified_variants()}
    assert all(np.isfinite(row.cpu_seconds) and row.memory > 0 for row in rows)


def test_few_images_at_a_small_epsilon_are_hopeless_for_every_method() -> None:
    few = facts(declared_size=500)
    assert all(row.expected_use is Use.HOPELESS for row in plan_all(few))
    assert "almost completely" in (use_warning(choose_method(few).method, few) or "")
    assert use_warning("dp-merf", facts()) is None
    chosen = choose_method(few)
    needed = [row.rough_from for row in plan_all(few) if row.rough_from and row.cpu_seconds <= TIME_LIMIT]
    assert (chosen.plan.rough_from or 0) <= 2 * min(needed) and "needs few images with it" in chosen.why


def test_units_needed_reach_the_share() -> None:
    needed = units_needed("dp-merf", facts(), 0.8)
    assert needed is not None
    assert (expected_share("dp-merf", signal_to_noise(facts(declared_size=needed))) or 0) >= 0.8
    assert units_needed("dp-realnvp", facts(), 0.8) is None


def test_the_choice_keeps_the_time_limit_and_says_why() -> None:
    choice = choose_method(facts(), device="cpu")
    assert choice.plan.cpu_seconds <= TIME_LIMIT and choice.method in choice.why and "60 min" in choice.why
    quick = choose_method(facts(), device="cpu", time_limit=300.0)
    assert quick.plan.cpu_seconds <= 300 and (quick.plan.share or 0) <= (choice.plan.share or 0)
    assert "fastest" in choose_method(facts(), device="cpu", time_limit=1.0).why


def test_the_table_has_the_facts_of_its_data() -> None:
    assert table_facts(table_rows()[0]).shape == (1, 28, 28)


def test_impossible_facts_are_refused() -> None:
    for wrong in ({"declared_size": 0}, {"epsilon": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            facts(**wrong)
