"""``sfumato audit``: exit status, JSON, a user's own method, and what a release's card learns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sfumato.audit.release_audit import audit_release, write
from sfumato.cli.audit import audit_app
from sfumato.data.digits import draw_digits
from sfumato.methods import DPMERF
from sfumato.methods.registry import load
from sfumato.privacy import Budget, PrivateRecords
from sfumato.training.run import Run

OWN = '''
from broken_methods import ControlMethod


class Leaky(ControlMethod):
    """Its divisor is the size of the batch."""

    def learn(self, curator, step, model, loss):
        return self.gradient(step, model, loss) / max(1, len(step._batch))
'''


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(audit_app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout if "--json" in words else result.output


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    digits = draw_digits(60, seed=1)
    private = PrivateRecords(digits.pixels, digits.labels, classes=digits.classes)
    folder = Run(tmp_path / "run")
    folder.begin({}, resume=False)
    folder.finish(
        DPMERF(features=100, width=2, iterations=3, batch_size=20).fit(private, Budget(1.0, 1e-5), folder.ledger)
    )
    return tmp_path / "run"


def test_replay_says_by_its_status_whether_something_was_found() -> None:
    quick = ("--size", "8", "--pairs", "1", "--search", "1", "--json")
    status, text = run("replay", "broken_methods:ControlMethod", *quick)
    assert status == 0 and json.loads(text)["pairs"] == 9
    status, text = run("replay", "broken_methods:TwoClips", *quick)
    assert status == 1 and json.loads(text)["movement"]["train / gradient"] > 1.4


@pytest.mark.long
def test_replay_takes_a_users_own_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_audit.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    status, text = run("replay", "mine_to_audit:Leaky", "--size", "8", "--pairs", "2", "--search", "0")
    assert status == 1 and "same release" in text


def test_replay_reads_a_collection(tmp_path: Path) -> None:
    digits = draw_digits(30, seed=2)
    np.savez(tmp_path / "digits.npz", images=digits.pixels, labels=digits.labels, classes=np.array(digits.classes))
    options = ("--data", str(tmp_path / "digits.npz"), "--pairs", "1", "--search", "1")
    status, text = run("replay", "dp-merf", *options)
    assert status == 0 and "nothing flagged" in text


def test_unknown_classes_and_settings_are_refused() -> None:
    with pytest.raises(LookupError, match="Nobody"):
        run("replay", "broken_methods:Nobody")
    with pytest.raises(ValueError, match="no parameter"):
        run("noise", "dp-merf", "--set", "feature=3")


def test_noise_and_canary_print_what_they_measured() -> None:
    status, text = run("noise", "dp-merf", "--runs", "2", "--json")
    assert status == 0 and set(json.loads(text)) == {"generator", "dp-merf"}
    status, text = run("canary", "dp-merf", "--canaries", "200")
    assert status == 0 and "measured ≥" in text and "printed ε 0.99" in text and "proved" not in text
    status, text = run("canary", "broken_methods:NoClip", "--canaries", "700")
    assert status == 1


def test_a_release_is_audited_and_its_card_says_so(finished: Path) -> None:
    # Twenty canaries of a sound release are flagged in 3 of a million runs; a hundred, in 2 of ten thousand.
    status, text = run("release", str(finished), "--pairs", "2", "--canaries", "20")
    assert status == 0 and "measured ≥" in text
    written = finished / "audit.json"
    assert written.stat().st_mode & 0o077 == 0
    assert json.loads(written.read_text())["card"] == {
        "recomputed": 0.998,
        "covers": True,
        "on_ledger": True,
        "problems": [],
        "sound": True,
    }
    assert sorted(path.name for path in (finished / "release").iterdir()) == [
        "card.html",
        "card.json",
        "model.safetensors",
    ]
    lines = load(finished / "release").card.audits
    assert len(lines) == 4 and any("measured ≥" in line and "printed ε" in line for line in lines)
    assert "measured ≥" in (finished / "release" / "card.html").read_text()


def test_what_membership_attacks_find_stays_behind(finished: Path) -> None:
    digits = draw_digits(60, seed=1)
    members, others = (digits.pixels[:30], digits.labels[:30]), (digits.pixels[30:], digits.labels[30:])
    audit = audit_release(finished, members=members, others=others, pairs=1, canaries=50, samples=50)
    write(audit, finished)
    assert [one["attack"] for one in audit["internal"]["membership"]] == ["GAN-Leaks", "GAN-Leaks, calibrated"]
    for path in (finished / "release").iterdir():
        assert b"GAN-Leaks" not in path.read_bytes()


def test_a_card_that_understates_is_flagged(finished: Path) -> None:
    card = finished / "release" / "card.json"
    facts = json.loads(card.read_text())
    card.write_text(json.dumps({**facts, "epsilon": 0.5}))
    audit = audit_release(finished, pairs=1, canaries=50)
    assert audit["flagged"] and not audit["card"]["covers"]


def test_membership_of_a_finished_run(finished: Path, tmp_path: Path) -> None:
    for name, seed in (("in", 1), ("out", 5)):
        digits = draw_digits(40, seed=seed)
        arrays = {"images": digits.pixels, "labels": digits.labels, "classes": np.array(digits.classes)}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    places = ("--members", str(tmp_path / "in.npz"), "--others", str(tmp_path / "out.npz"))
    status, text = run("membership", str(finished), *places, "--samples", "50", "--shadows", "4")
    assert status == 0 and "INTERNAL" in text and "LiRA, 4 shadows" in text
