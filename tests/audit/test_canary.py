"""Canaries measure no more than is printed on sound methods, and more on broken ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit.studies import case_studies
from broken_methods import ControlMethod, HalvedNoise, NoClip
from sfumato.audit.canary import accountant_check, black_box, white_box
from sfumato.audit.worst_case import worst_case_images
from sfumato.methods import DPMERF
from sfumato.privacy import Block, Budget, RawAccess, SubsampledGaussian

PRIVATE = worst_case_images(12, size=28)


@pytest.mark.parametrize("epsilon", [pytest.param(1.0, marks=pytest.mark.long), 8.0])
@pytest.mark.parametrize("method", [ControlMethod.small(), replace(DPMERF.small(), features=300)], ids=lambda m: m.name)
def test_a_certified_method_measures_below_what_it_prints(method: ControlMethod | DPMERF, epsilon: float) -> None:
    audit = white_box(method, PRIVATE, budget=Budget(epsilon, 1e-5), canaries=780, seed=0)
    assert not audit.flagged and 0.99 * epsilon <= audit.printed <= epsilon
    assert audit.also is not None and audit.also.epsilon <= audit.printed
    if epsilon == 8.0:
        # The attack has teeth: it finds a good part of what may be found.
        assert audit.bound.epsilon > 1.3 and audit.also.epsilon > 2.5


def test_a_person_can_be_a_canary() -> None:
    private = worst_case_images(12, size=28, persons=True)
    audit = white_box(ControlMethod.small(), private, budget=Budget(8.0, 1e-5, unit="person"), canaries=780, seed=0)
    assert not audit.flagged and audit.bound.epsilon > 1.3


def test_a_missing_clip_is_measured() -> None:
    assert white_box(NoClip.small(), PRIVATE, budget=Budget(1.0, 1e-5), canaries=700, seed=0).flagged


def test_halved_noise_measures_more() -> None:
    sound, halved = (
        white_box(method.small(), PRIVATE, budget=Budget(4.0, 1e-5), canaries=780, runs=4, seed=0).also
        for method in (ControlMethod, HalvedNoise)
    )
    assert sound is not None and halved is not None
    assert sound.epsilon < 4.0 < halved.epsilon


def test_released_images_can_be_attacked() -> None:
    method = ControlMethod(sampling_rate=1.0, steps=20, clip_norm=20.0, learning_rate=0.05)
    few = worst_case_images(3, size=16)
    loud = black_box(method, few, budget=Budget(1000.0, 1e-5), canaries=60, samples=40, seed=0)
    quiet = black_box(method, few, budget=Budget(0.5, 1e-5), canaries=60, samples=40, seed=0)
    assert loud.bound.epsilon > 1.0 and quiet.bound.epsilon < 0.5
    assert not loud.flagged and not quiet.flagged


def test_the_accountant_is_not_refuted_and_nearly_reached() -> None:
    events = (
        SubsampledGaussian("a", (Block("x", 1.0),), sampling_rate=0.2, steps=20),
        SubsampledGaussian("b", (Block("y", 3.0),)),
    )
    audit = accountant_check(events, delta=1e-3, draws=100_000, seed=0)
    assert 0.85 * audit.printed < audit.bound.epsilon <= audit.printed
    with pytest.raises(ValueError, match="raw access"):
        accountant_check((RawAccess("r", "why"),), delta=1e-3)


@pytest.mark.long
def test_published_algorithms_measure_above_their_claims() -> None:
    random = np.random.default_rng(0)
    assert case_studies.dppm(random, claimed=1.0, steps=2000).bound.epsilon > 3
    assert case_studies.dp2_vae(random, claimed=1.0, runs=300).bound.epsilon > 2
    assert case_studies.dpaf(random, claimed=1.0).broken
    for script in (case_studies.two_clips, case_studies.shuffling):
        assert script(random, claimed=10.0, draws=100_000).broken
    assert not case_studies.certified(random, claimed=10.0, draws=100_000).broken
