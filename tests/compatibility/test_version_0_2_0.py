"""Releases and a ledger that version 0.2.0 wrote, of drawn digits, before its formats changed, still load and agree.

The files were written once, by two trainings on one ledger (DP-MERF, and the same with a noisy count of accuracy).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.methods.registry import load
from sfumato.privacy import Ledger
from sfumato.release.card import rounded_up
from sfumato.release.verification import disagreements

FOLDER = Path(__file__).parents[1] / "fixtures" / "0.2.0"


@pytest.mark.parametrize("name", ["first", "measured"])
def test_a_release_of_0_2_0_loads_samples_and_fits_its_ledger(name: str) -> None:
    release, ledger = load(FOLDER / name), Ledger.read(FOLDER / "ledger.jsonl")
    images, _ = release.sample(4, seed=1, device="cpu")
    assert images.shape == (4, 1, 4, 4)
    card = release.card
    assert card.certified and card.events == ledger.events(card.run)
    assert rounded_up(ledger.release_epsilon(card.run, 1e-5)) == card.epsilon
    assert disagreements(card, ledger) == []


def test_a_ledger_of_0_2_0_can_be_spent_from(tmp_path: Path) -> None:
    for name in ("ledger.jsonl", "ledger.jsonl.head"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        before = ledger.spent()
        (event, *_) = ledger.events()
        run = ledger.start_run(method="m", variant="v", seeded=False)
        ledger.reserve(run, [event.times(1)])  # type: ignore[list-item]
        ledger.charge(run, event.times(1))  # type: ignore[arg-type]
        after = ledger.spent()
    assert Ledger.read(tmp_path / "ledger.jsonl").spent() == after > before
