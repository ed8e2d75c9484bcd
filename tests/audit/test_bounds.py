"""Bounds on mechanisms whose ε is known: they seldom pass it, and a tight attack comes near it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sfumato.audit.bounds import (
    chance_of_guesses,
    gaussian_epsilon,
    likelihood_ratio,
    lower_rate,
    one_run,
    two_worlds,
    upper_rate,
)

DELTA = 1e-5
AUDITS = 200
ALLOWED = int(stats.binom.ppf(0.95, AUDITS, 0.05))
"""So many of 200 audits at 95 % may overshoot before a binomial test at 5 % objects."""


def gaussian_audits(mu: float, random: np.random.Generator) -> dict[str, float]:
    """One audit by each bound of a Gaussian mechanism, all attacked by the likelihood ratio itself."""
    out, within = random.normal(0, 1, 1000), random.normal(mu, 1, 1000)
    plain, gaussian = two_worlds(out, within, delta=DELTA)
    coins = random.random(1000) < 0.5
    single = one_run(random.normal(0, 1, 1000) + mu * coins, coins, delta=DELTA)
    losses = mu * random.normal(mu, 1, 4000) - mu**2 / 2
    exact = likelihood_ratio(losses, delta=1e-2)
    return {bound.method: bound.epsilon for bound in (plain, gaussian, single, exact)}


@pytest.mark.parametrize("mu", [0.5, pytest.param(2.0, marks=pytest.mark.long)])
def test_of_two_hundred_audits_few_overshoot(mu: float) -> None:
    random = np.random.default_rng(int(10 * mu))
    audits = [gaussian_audits(mu, random) for _ in range(AUDITS)]
    for name in audits[0]:
        truth = gaussian_epsilon(mu, 1e-2 if name == "likelihood ratio" else DELTA)
        over = sum(audit[name] > truth for audit in audits)
        assert over <= ALLOWED, name


def test_randomised_response_in_one_run_few_overshoot_and_the_bound_is_near() -> None:
    random, epsilons = np.random.default_rng(0), []
    for _ in range(AUDITS):
        coins = random.random(4000) < 0.5
        answers = coins ^ (random.random(4000) < 1 / (1 + math.e))
        epsilons.append(one_run(answers + 1e-6 * random.random(4000), coins, delta=0.0).epsilon)
    assert sum(epsilon > 1.0 for epsilon in epsilons) <= ALLOWED
    assert np.mean(epsilons) > 0.85


def test_a_tight_attack_comes_near_the_truth() -> None:
    random, mu = np.random.default_rng(1), 2.0
    truth = gaussian_epsilon(mu, DELTA)
    _, gaussian = two_worlds(random.normal(0, 1, 50_000), random.normal(mu, 1, 50_000), delta=DELTA)
    assert 0.95 * truth < gaussian.epsilon <= truth
    losses = mu * random.normal(mu, 1, 4_000_000) - mu**2 / 2
    assert 0.93 * truth < likelihood_ratio(losses, delta=DELTA).epsilon <= truth


def test_a_miscounted_mechanism_is_exposed() -> None:
    """Noise of half the size: ε is far above what the full noise would give."""
    random, mu = np.random.default_rng(2), 1.0
    _, gaussian = two_worlds(random.normal(0, 1, 4000), random.normal(2 * mu, 1, 4000), delta=DELTA)
    assert gaussian.epsilon > gaussian_epsilon(mu, DELTA)


def test_clopper_pearson_saturates_at_the_number_of_runs() -> None:
    plain, _ = two_worlds(np.zeros(1000), np.ones(1000), delta=DELTA)
    assert 4.5 < plain.epsilon < math.log(1000)


def test_the_worlds_may_lie_the_other_way_round() -> None:
    random = np.random.default_rng(3)
    plain, gaussian = two_worlds(random.normal(3, 1, 1000), random.normal(0, 1, 1000), delta=DELTA)
    assert plain.epsilon > 2 and gaussian.epsilon > 5


def test_nothing_is_measured_where_there_is_nothing() -> None:
    random = np.random.default_rng(4)
    scores, coins = random.normal(size=1000), random.random(1000) < 0.5
    assert one_run(scores, coins, delta=DELTA).epsilon < 0.2
    assert likelihood_ratio(np.zeros(10_000), delta=1e-2).epsilon == 0


def test_rates_and_guesses_have_known_values() -> None:
    assert upper_rate(0, 100, 0.05) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert lower_rate(100, 100, 0.05) == pytest.approx(0.05 ** (1 / 100))
    assert (upper_rate(5, 5, 0.05), lower_rate(0, 5, 0.05)) == (1.0, 0.0)
    # Ten right guesses of ten without any privacy loss are ten coins.
    assert chance_of_guesses(10, 10, 10, 0.0, 0.0) == pytest.approx(2.0**-10)
    assert chance_of_guesses(10, 10, 10, 0.0, 1e-3) > 2.0**-10
    assert gaussian_epsilon(1 / 3.7306, DELTA) == pytest.approx(1.0, rel=1e-3)
