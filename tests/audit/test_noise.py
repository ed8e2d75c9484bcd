"""The noise audit finds what replay cannot see, and nothing in what is sound."""

from __future__ import annotations

import numpy as np
import pytest

from broken_methods import ControlMethod, HalvedNoise, OffGrid, SeededNoise, Shuffled
from sfumato.audit.noise import ALPHA, audit_generator, audit_noise, coin_tests, law_test, scale_test
from sfumato.audit.worst_case import worst_case_images
from sfumato.privacy import Budget

BUDGET = Budget(3.0, 1e-5)
PRIVATE = worst_case_images(24, size=8)


def test_the_generator_is_as_it_says() -> None:
    audit = audit_generator(numbers=100_000, units=500)
    assert not audit.flagged and not any("NOT" in test.exposes for test in audit.tests)


def test_the_sound_method_is_as_it_says() -> None:
    audit = audit_noise(ControlMethod.small(), PRIVATE, budget=BUDGET)
    assert not audit.flagged and len(audit.tests) == 13


@pytest.mark.parametrize(
    ("method", "tests"),
    [
        (HalvedNoise, {"scale of the noise"}),
        (SeededNoise, {"independence: two runs under one manual_seed", "independence: consecutive steps"}),
        (OffGrid, {"answers on the grid, in both worlds"}),
        (Shuffled, {"coins of train: batch sizes", "coins of train: draws of a unit"}),
    ],
)
def test_the_right_tests_fail(method: type[ControlMethod], tests: set[str]) -> None:
    audit = audit_noise(method.small(), PRIVATE, budget=BUDGET, runs=2)
    assert tests <= {one.name for one in audit.tests if one.failed}


def test_a_wrong_scale_law_or_rate_is_rejected() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=100_000)
    assert not scale_test(values).failed and not law_test(values).failed
    assert scale_test(1.03 * values).failed and scale_test(0.97 * values).failed
    assert law_test(random.laplace(scale=0.5**0.5, size=100_000)).failed
    fair = random.random((200, 300)) < 0.2
    assert not any(test.failed for test in coin_tests(fair, 0.2, "fair"))
    assert coin_tests(fair, 0.22, "wrong rate")[0].failed


def test_coins_that_hang_together_are_rejected() -> None:
    random = np.random.default_rng(1)
    table = random.random((200, 300)) < 0.2
    table[:, 1::2] = table[:, ::2]
    assert "coins of pairs: neighbouring units" in {t.name for t in coin_tests(table, 0.2, "pairs") if t.failed}
    sticky = np.repeat(random.random((100, 300)) < 0.2, 2, axis=0)
    assert "coins of s: consecutive steps" in {t.name for t in coin_tests(sticky, 0.2, "s") if t.failed}
    assert min(test.chance for test in coin_tests(sticky, 0.2, "s")) < ALPHA
