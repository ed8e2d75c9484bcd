"""Drawn digits: repeatable, varied, and digits."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from sfumato.data.digits import CLASSES, SIDE, draw_digits


def test_same_seed_same_pictures() -> None:
    first, again, other = draw_digits(50, seed=1), draw_digits(50, seed=1), draw_digits(50, seed=2)
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert (first.pixels != other.pixels).any()
    assert first.pixels.shape == (50, 1, SIDE, SIDE) and first.classes == CLASSES


def test_no_two_pictures_are_alike() -> None:
    found = draw_digits(500, seed=3)
    assert len(np.unique(found.pixels.reshape(500, -1), axis=0)) == 500
    assert set(found.labels) == set(range(10))


def test_a_classifier_learns_them() -> None:
    train, test = draw_digits(1500, seed=4), draw_digits(500, seed=5)
    model = LogisticRegression(C=0.1, max_iter=200).fit(train.pixels.reshape(1500, -1) / 255, train.labels)
    assert model.score(test.pixels.reshape(500, -1) / 255, test.labels) > 0.85
