"""A card that was edited does not fit its ledger, whatever was edited, and the ledger says in what."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from torch import nn

from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.dp_realnvp import DPRealNVP
from sfumato.methods.scored import ScoredMethod
from sfumato.privacy import Budget, Counts, Curator, Ledger
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.events import RawAccess
from sfumato.release.card import Card, LedgerHead
from sfumato.release.plain_numbers import best_guess
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


def test_an_edited_card_does_not(trained: tuple[Card, Path]) -> None:
    for edit, said in [
        (lambda card: {"epsilon": 0.5}, "the card states ε 0.5, and what the ledger charges to its run costs"),
        (lambda card: {"events": card.events[1:]}, "the events on the card are not those"),
        (lambda card: {"method": "dp-vae"}, "the run on the ledger is of dp-merf"),
        (lambda card: {"unit": "person"}, "unit is another"),
        (lambda card: {"parameters": {**card.parameters, "features": 7}}, "the parameters on the card are not those"),
        (lambda card: {"relation": "replace one unit"}, "the ε of the run holds for 'add or remove one unit'"),
        (lambda card: {"best_guess": 0.51}, "the card states that 0.51 of guesses are right at most"),
        (lambda card: {"run": "0" * 16}, "is not on this ledger"),
        (lambda card: {"ledger_head": LedgerHead(card.ledger_head.length, "0" * 64)}, "is not on this ledger"),
    ]:
        card, path = trained
        found = disagreements(replace(card, **edit(card)), Ledger.read(path))
        assert any(said in sentence for sentence in found), found


def test_a_seeded_run_cannot_be_called_certified(trained: tuple[Card, Path]) -> None:
    card, path = trained
    ledger = Ledger.read(path)
    seeded = next(run["run"] for run in ledger.runs() if run["seeded"])
    found = disagreements(replace(card, run=seeded), ledger)
    assert any("fixed seed" in sentence for sentence in found), found


def test_a_measured_release_fits_the_run_that_measured_it() -> None:
    ledger = Ledger(None, BUDGET)
    method = ScoredMethod.of(DPMERF.small(), noise=30.0)
    card = method.fit(worst_case_images(), BUDGET, ledger, device="cpu").card
    assert card.method == "dp-merf" and disagreements(card, ledger) == []
    other = replace(card, parameters=DPMERF().parameters())
    assert any("parameters on the card" in sentence for sentence in disagreements(other, ledger))


@dataclass(frozen=True)
class StopsEarly(DPRealNVP):
    """Stops where the answers look good enough, here after the first of them."""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes))
        for step in curator.steps("training"):
            step.noisy_gradient("gradient", model, self.loss, clip_norm=self.clip_norm)
            break
        return model, None


def test_the_card_of_a_run_that_stopped_early_states_the_epsilon_of_its_plan() -> None:
    """Where to stop was chosen after the answers, so that the ε of the answers alone does not hold."""
    method, ledger = StopsEarly.small(), Ledger(None, Budget(9.0, 1e-5))
    card = method.fit(worst_case_images(), BUDGET, ledger, device="cpu").card
    whole = method.plan(BUDGET)
    assert card.certified and card.epsilon is not None and whole.epsilon <= card.epsilon <= whole.epsilon * 1.01
    assert [event.steps for event in card.events if not isinstance(event, RawAccess)] == [1]
    assert card.best_guess >= best_guess(whole.events) and card.collection_epsilon == card.epsilon
    assert disagreements(card, ledger) == []
    assert card.planned == whole.events and Card.from_json(json.loads(json.dumps(card.to_json()))) == card
    other = disagreements(replace(card, planned=()), ledger)
    assert any("the plan on the card" in sentence for sentence in other)
    less = replace(card, epsilon=epsilon(card.events, 1e-5))
    assert any("costs" in sentence for sentence in disagreements(less, ledger))
