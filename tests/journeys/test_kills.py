"""A few of the trials of ``tests/kills.py``: killed at a random moment, resumed with four ledgers."""

from __future__ import annotations

import pytest

from kills import LEDGERS, trials

CASES = [("dp-merf", "certified"), ("dp-realnvp", "certified"), ("dp2-vae", "record"), ("gs-wgan", "certified")]


@pytest.mark.long
def test_a_killed_run_is_never_certified_below_what_was_drawn() -> None:
    found = list(trials(4, seed=1, cases=CASES))
    assert [trial.unsound for trial in found] == [[]] * 4
    for trial in found:
        assert set(trial.outcomes) == set(LEDGERS)
        # The run's own ledger is never refused; at most a charged answer was lost, and the charge stays. A run that was
        # killed before its folder was complete cannot be resumed, and has spent nothing.
        unborn = ["FileExistsError"] if not trial.charged else []
        assert trial.outcomes["same"] in ("finished", "AnswerLost", *unborn)
        if trial.drawn:
            assert trial.outcomes["another"] == trial.outcomes["none"] == "RunRefused"
