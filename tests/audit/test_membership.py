"""Membership attacks find copies, find little under noise, and are counted where it matters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from broken_methods import ControlMethod
from sfumato.audit.membership import Membership, distance, gan_leaks, likelihood, lira
from sfumato.data.digits import draw_digits
from sfumato.methods import DPMERF
from sfumato.privacy import Budget, PrivateRecords

DIGITS = draw_digits(160, seed=0)
PIXELS, LABELS = DIGITS.pixels, DIGITS.labels


def test_copies_are_found() -> None:
    found = gan_leaks(PIXELS[:50], PIXELS[:50], PIXELS[50:100])
    assert found.auc == 1.0 and found.true_positives(0.001) == 1.0
    strangers = gan_leaks(PIXELS[100:], PIXELS[:50], PIXELS[50:100])
    assert 0.3 < strangers.auc < 0.7


def test_calibration_takes_out_what_is_near_everything() -> None:
    dull = np.full((20, 1, 28, 28), 40, np.uint8)
    others = np.concatenate([PIXELS[50:80], dull])
    plain = gan_leaks(PIXELS[:25], PIXELS[:25], others)
    calibrated = gan_leaks(PIXELS[:25], PIXELS[:25], others, reference=PIXELS[80:])
    assert calibrated.true_positives(0.01) >= plain.true_positives(0.01) == 1.0


def test_rates_are_counted_as_they_should() -> None:
    found = Membership("made up", np.array([3.0, 2.0, 1.0, 0.0]), np.array([2.5, 0.5, 0.4, 0.3]))
    assert found.true_positives(0.0) == 0.25 and found.true_positives(0.25) == 0.75 and found.true_positives(1.0) == 1.0
    assert found.auc == pytest.approx(10 / 16)
    assert found.to_json()["tpr_at_1_percent_fpr"] == 0.25
    rates = found.curve()
    assert rates[-1] == (1.0, 1.0) and all(a[1] <= b[1] for a, b in itertools.pairwise(rates))


@pytest.mark.parametrize(("epsilon", "low", "high"), [(1.0, 0.35, 0.62), (1e4, 0.7, 1.0)])
def test_shadow_models_tell_members_only_without_noise(epsilon: float, low: float, high: float) -> None:
    method = ControlMethod(sampling_rate=1.0, clip_norm=10.0, learning_rate=0.05)
    found = lira(
        method,
        PIXELS[:60],
        LABELS[:60],
        classes=DIGITS.classes,
        budget=Budget(epsilon, 1e-5),
        score=distance(50),
        shadows=10,
    )
    assert low < found.auc < high


def test_a_density_is_used_where_there_is_one() -> None:
    release = DPMERF.small().fit(PrivateRecords(PIXELS, LABELS, classes=DIGITS.classes), Budget(1.0, 1e-5))
    with pytest.raises(ValueError, match="no density"):
        likelihood(release, PIXELS, LABELS)
