"""A card is read as it was written, and images do not go with a card that cannot be theirs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from release.cards import FILE, certified, without_guarantee
from sfumato.release import Card, SyntheticImages


def test_a_card_is_read_as_it_was_written() -> None:
    """One of version 0.1.0, whose events were written with other keys."""
    written = json.loads(FILE.read_text())
    card = Card.from_json(written)
    assert Card.from_json(json.loads(card.text)) == card
    assert {**card.to_json(), "events": written["events"]} == written and list(card.to_json()) == list(written)
    assert certified().summary().to_json() == {
        "guarantee": "certified",
        "epsilon": 1.0,
        "delta": 1e-5,
        "unit": "image",
    }


def test_missing_and_unknown_entries_are_named() -> None:
    written = json.loads(FILE.read_text())
    with pytest.raises(ValueError, match=r"unknown entries.*diary"):
        Card.from_json({**written, "diary": "what else I know"})
    del written["events"]
    with pytest.raises(ValueError, match=r"lacks.*events"):
        Card.from_json(written)


def test_a_card_that_guarantees_nothing_definite_is_refused() -> None:
    for change in [{"guarantee": "sort of"}, {"epsilon": float("inf")}, {"epsilon": None}, {"sentence": " "}]:
        with pytest.raises(ValueError):
            certified(**change)


def test_synthetic_images_unpack_and_carry_their_card() -> None:
    card = without_guarantee(classes=("a", "b"))
    drawn = SyntheticImages(np.zeros((3, *card.shape), np.uint8), np.array([0, 1, 1]), card)
    images, labels = drawn
    assert images is drawn.images and labels is drawn.labels
    assert len(drawn) == 3 and drawn.classes == ("a", "b")
    with pytest.raises(AttributeError):
        drawn.card = certified()  # type: ignore[misc]


def test_wrong_arrays_are_refused() -> None:
    for images, labels in [
        (np.zeros((2, 3, 8, 8), np.float32), np.zeros(2, int)),
        (np.zeros((2, 8, 8), np.uint8), np.zeros(2, int)),
        (np.zeros((2, 3, 8, 8), np.uint8), np.zeros(3, int)),
        (np.zeros((2, 3, 8, 8), np.uint8), np.array([0, 3])),
        (np.zeros((2, 3, 8, 8), np.uint8), np.array([0.0, 1.0])),
        (np.zeros((2, 1, 8, 8), np.uint8), np.zeros(2, int)),
    ]:
        with pytest.raises(ValueError):
            SyntheticImages(images, labels, certified(shape=(3, 8, 8), classes=("a", "b", "c")))
