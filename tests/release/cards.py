"""Cards for tests that need no training, from one that a seeded training wrote."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from sfumato.release import Card

FILE = Path(__file__).with_name("card.json")


def without_guarantee(**changes: Any) -> Card:
    """The card as it was written, by a training with a fixed seed."""
    return replace(Card.from_json(json.loads(FILE.read_text())), **changes)


def certified(**changes: Any) -> Card:
    """What the card would say if the training had had no fixed seed."""
    promise = {"guarantee": "certified", "epsilon": 1.0, "delta": 1e-5, "sentence": "At most a factor e^ε, ε = 1."}
    return replace(without_guarantee(reasons=()), **(promise | changes))
