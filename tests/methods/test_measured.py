"""A measured accuracy on the card: a query within the budget, and nothing else of the wrapper is released."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands import run_here
from methods.test_tuning import records
from report.finished import write_npz
from sfumato.audit.replay import replay
from sfumato.data.digits import draw_digits
from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.registry import load
from sfumato.methods.scored import ScoredMethod, accuracy_remark
from sfumato.privacy import Budget
from sfumato.report.scan import scan


def test_neighbours_differ_by_no_more_than_was_paid_for() -> None:
    found = replay(ScoredMethod.small(), records(40), budget=Budget(epsilon=50, delta=1e-5), pairs=2)
    assert found.pairs == 2 and not found.findings, found.findings
    [moved] = [value for name, value in found.movement.items() if "labelled correctly" in name]
    assert 0.9 < moved <= 1


def test_a_count_that_the_noise_hides_says_nothing() -> None:
    assert "about 80 % (± 2.5 % by the noise) of the persons" in accuracy_remark(800, 200, 30, "person")
    assert "nothing can be said" in accuracy_remark(80, 20, 30, "image")


def test_the_command_releases_the_count_as_a_query_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, run, method = write_npz(tmp_path / "digits.npz", draw_digits(120, seed=3)), tmp_path / "run", DPMERF.small()
    words = ["train", str(data), "--classes", "10", "--method", "dp-merf", "--epsilon", "5", "--device", "cpu"]
    small = [f"{key}={value}" for key, value in method.parameters().items() if key != "variant"]
    words += [word for setting in small for word in ("--set", setting)]
    assert run_here(monkeypatch, *words, "--release-accuracy", "8", "--out", str(run)) == 0
    release = load(run / "release")
    card = release.card
    assert card.certified and card.epsilon is not None and card.epsilon <= 5
    assert card.method == "dp-merf" and card.parameters == method.parameters()
    assert [event.name for event in card.events] == ["label counts", "mean embedding", "units labelled correctly"]
    assert set(release.model.state_dict()) == set(method.build((1, 28, 28), 10).state_dict())
    assert card.remarks[-1].startswith("Measured: ") and "--release-accuracy 8" in str(card.command)
    assert scan(run) == [] and card.remarks[-1][:30] in (run / "release" / "card.html").read_text()
