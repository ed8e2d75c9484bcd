"""A card that was edited does not fit its ledger, whatever was edited, and the ledger says in what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfumato.methods.dp_merf import DPMERF
from sfumato.privacy import Budget, Ledger
from sfumato.release.card import Card, LedgerHead
from sfumato.release.verification import disagreements
from worst_case import worst_case_images

BUDGET = Budget(3.0, 1e-5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Card, Path]:
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    with Ledger(path, Budget(9.0, 1e-5)) as ledger:
        DPMERF.small().fit(worst_case_images(), BUDGET, ledger, device="cpu", seed=1)
        release = DPMERF.small().fit(worst_case_images(), BUDGET, ledger, device="cpu")
    assert release.card.certified
    return release.card, path


def test_an_honest_card_fits(trained: tuple[Card, Path]) -> None:
    card, path = trained
    assert disagreements(card, Ledger.read(path)) == []


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda card: {"epsilon": 0.5}, "the card states ε 0.5, and what the ledger charges to its run costs"),
        (lambda card: {"events": card.events[1:]}, "the events on the card are not those"),
        (lambda card: {"method": "dp-vae"}, "the run on the ledger is of dp-merf"),
        (lambda card: {"unit": "person"}, "unit is another"),
        (lambda card: {"run": "0" * 16}, "is not on this ledger"),
        (lambda card: {"ledger_head": LedgerHead(card.ledger_head.length, "0" * 64)}, "is not on this ledger"),
    ],
)
def test_an_edited_card_does_not(trained: tuple[Card, Path], edit: Any, said: str) -> None:
    card, path = trained
    found = disagreements(replace(card, **edit(card)), Ledger.read(path))
    assert any(said in sentence for sentence in found), found


def test_a_seeded_run_cannot_be_called_certified(trained: tuple[Card, Path]) -> None:
    card, path = trained
    ledger = Ledger.read(path)
    seeded = next(run["run"] for run in ledger.runs() if run["seeded"])
    found = disagreements(replace(card, run=seeded), ledger)
    assert any("fixed seed" in sentence for sentence in found), found
