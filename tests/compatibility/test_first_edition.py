"""Releases and ledgers of version 0.1.0 load, and the arithmetic of every method is what it was.

``first_edition`` was written by version 0.1.0 (see ``record.py``). The fingerprints are compared with tolerances that
allow for another machine's rounding; on one machine the bits are the same.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from compatibility.record import FOLDER, summary, trained
from sfumato.methods.registry import load
from sfumato.privacy import Ledger

FINGERPRINTS: dict[str, Any] = json.loads((FOLDER / "fingerprints.json").read_text())


def close(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    if found["sha256"] == expected["sha256"]:
        return True
    room = 1e-4 * expected["norm"] + 1e-6
    near = abs(found["norm"] - expected["norm"]) <= room and abs(found["projection"] - expected["projection"]) <= room
    return found["shape"] == expected["shape"] and near


def test_an_old_release_and_its_ledger_load_and_sample() -> None:
    for name in sorted(FINGERPRINTS):
        release = load(FOLDER / name / "release")
        images, labels = release.sample(8, seed=1, device="cpu")
        assert images.shape == (8, 1, 28, 28) and len(labels) == 8
        assert close(summary(images), FINGERPRINTS[name]["samples"])
        ledger = Ledger.read(FOLDER / name / "ledger.jsonl")
        assert ledger.holds(**{"length": release.card.ledger_head.length, "digest": release.card.ledger_head.hash})
        assert ledger.events() == release.card.events
        written = json.loads((FOLDER / name / "release" / "card.json").read_text())
        assert {**release.card.to_json(), "events": written["events"]} == written


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FINGERPRINTS))
def test_a_seeded_training_gives_the_same_tensors(name: str) -> None:
    expected = FINGERPRINTS[name]
    found = list(trained(name, expected["budget"]).values())
    assert len(found) == len(expected["tensors"])
    different = [
        key for one, (key, other) in zip(found, expected["tensors"].items(), strict=True) if not close(one, other)
    ]
    assert not different


def test_the_comparison_notices_a_change() -> None:
    values = np.linspace(0.0, 1.0, 100)
    moved = values.copy()
    moved[3] += 0.01
    assert close(summary(values), summary(values)) and not close(summary(moved), summary(values))
