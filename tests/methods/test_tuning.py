"""Settings chosen by private selection: the guarantee, the charge, and the release of the best trial."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.data.digits import draw_digits
from sfumato.methods.base import Method
from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.dpaf import DPAF
from sfumato.methods.gs_wgan import GSWGAN
from sfumato.methods.registry import load
from sfumato.methods.scored import Tuning
from sfumato.privacy import Budget, BudgetExceeded, Curator, Ledger, PrivateRecords
from sfumato.privacy.events import PrivateSelection
from sfumato.privacy.interfaces import PublicInput
from sfumato.privacy.ledger import RunRefused
from sfumato.training.run import RunOptions

BUDGET = Budget(epsilon=5, delta=1e-5)
CPU = RunOptions(device="cpu")
CANDIDATES = [replace(DPMERF.small(), length_scale=scale) for scale in (2.0, 10.0)]


def records(count: int = 60) -> PrivateRecords:
    drawn = draw_digits(count, seed=0)
    return PrivateRecords(drawn.pixels[:, :, 2:26:3, 2:26:3], drawn.labels, classes=drawn.classes)


def test_the_whole_selection_is_charged_and_the_best_trial_is_released(tmp_path: Path) -> None:
    tuning = Tuning.planned(CANDIDATES, BUDGET, expected_trials=2)
    release = tuning.fit(records(), tmp_path / "ledger.jsonl", CPU)
    card = release.card
    assert card.certified and card.epsilon is not None and 4 < card.epsilon <= 5
    assert card.events == (tuning.event,) and isinstance(card.events[0], PrivateSelection)
    assert card.method == "dp-merf" and card.parameters["length_scale"] in (2.0, 10.0)
    assert any("private selection" in remark for remark in card.remarks)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        assert ledger.spent() == pytest.approx(card.epsilon, rel=0.01) and len(ledger.runs()) == 1
    release.save(tmp_path / "release")
    again = load(tmp_path / "release")
    assert np.array_equal(again.sample(20, seed=1).images, release.sample(20, seed=1).images)


def test_a_ledger_that_has_too_little_left_refuses_before_the_first_trial() -> None:
    ledger = Ledger(None, limit=replace(BUDGET, epsilon=1))
    with pytest.raises(BudgetExceeded):
        Tuning.planned(CANDIDATES, BUDGET, expected_trials=2).fit(records(), ledger, CPU)
    assert ledger.spent() == 0


def test_a_trial_that_asks_for_more_than_was_charged_is_not_released() -> None:
    tuning = Tuning.planned(CANDIDATES, BUDGET, expected_trials=2)
    louder = tuple(replace(trial, noise_factor=0.99 * trial.noise_factor) for trial in tuning.trials)
    with pytest.raises((RunRefused, BudgetExceeded)):
        replace(tuning, trials=louder).fit(records(), None, CPU)


def test_the_number_of_trials_is_not_told_by_what_they_warn_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    private, budget = records(), Budget(epsilon=20, delta=1e-4)
    private.declared_size = 5000  # at this size, a run warns of its δ
    tuning = Tuning.planned(CANDIDATES, budget, expected_trials=2)
    told = []
    for trials in (1, 3):
        monkeypatch.setattr("sfumato.methods.scored.draw_trials", lambda *_, trials=trials: trials)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tuning.fit(private, None, CPU)
        # A ResourceWarning comes from whatever object of an earlier test happens to be collected meanwhile.
        warned = [str(one.message) for one in caught if one.category is not ResourceWarning]
        told.append((warned, capfd.readouterr()))
    assert told[0] == told[1] and any("delta 0.0001" in text for text in told[0][0])


def test_trials_that_treat_different_collections_as_public_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card names the collections of the best trial, and which trial is the best depends on all of them."""
    monkeypatch.setattr("sfumato.methods.scored.draw_trials", lambda *_: 2)
    train, number = DPMERF.fit_networks, iter("ab")

    def with_public(method: DPMERF, curator: Curator) -> Any:
        curator.treat_as_public(PublicInput("faces", next(number) * 64))
        return train(method, curator)

    monkeypatch.setattr(DPMERF, "fit_networks", with_public)
    with pytest.raises(RunRefused, match="different collections"):
        Tuning.planned(CANDIDATES, BUDGET, expected_trials=2).fit(records(), None, CPU)


@pytest.mark.parametrize(
    ("candidates", "hint"),
    [
        (CANDIDATES[:1], "two candidates"),
        ([GSWGAN.small(), *CANDIDATES], "adding or removing"),
        ([replace(DPAF.small(), public=path) for path in ("one", "other")], "different public collections"),
    ],
)
def test_what_cannot_be_tuned_is_refused(candidates: list[Method], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        Tuning.planned(candidates, BUDGET)
