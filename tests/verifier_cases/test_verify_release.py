"""``verifier/verify_release.py`` agrees with honest releases, and sees what was changed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import verify_release  # type: ignore[import-not-found]

from cli.commands import run_here
from sfumato.methods.dp_realnvp import DPRealNVP
from sfumato.privacy import Block, Budget, SubsampledGaussian
from sfumato.privacy.accounting import epsilon
from sfumato.training.run import RunOptions, train_run
from verifier_cases.releases import METHOD_CASES, OTHER_CASES, made
from worst_case import worst_case_images

SCRIPT = Path(__file__).parents[2] / "verifier" / "verify_release.py"
QUICK = ("dp-merf certified", "unit person", "lineage elsewhere", "second run on the ledger")


@pytest.mark.parametrize(
    "case",
    [one if one in QUICK else pytest.param(one, marks=pytest.mark.long) for one in (*METHOD_CASES, *OTHER_CASES)],
)
def test_an_honest_release_agrees(tmp_path: Path, case: str) -> None:
    folder = made(case, tmp_path / "run")
    for given in ({"ledger": folder / "ledger.jsonl"}, {"transcript": folder / "transcript.jsonl"}):
        found = verify_release.verify(folder, **given)
        assert found["status"] == 0, found
    alone = verify_release.verify(folder)
    assert alone["status"] == 2 and "only a ledger or a transcript" in alone["verdict"]
    withheld = (folder / "transcript.jsonl").read_text().count("withheld")
    if case == "second run on the ledger":
        assert withheld > 2, "another run's lines"
    elif case == "dp-merf certified":
        assert withheld == 0


def test_it_runs_alone_and_needs_nothing_installed(tmp_path: Path) -> None:
    folder = made("dp-merf certified", tmp_path / "run")
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 500 and "sfumato" not in [
        word
        for line in text.splitlines()
        if line.startswith(("import", "from"))
        for word in line.replace(",", "").split()
    ]
    command = [sys.executable, "-I", "-S", str(SCRIPT), str(folder), "--transcript", str(folder / "transcript.jsonl")]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert asked.returncode == 0 and "agrees with the ledger" in asked.stdout
    assert json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True).stdout)["status"] == 0


@pytest.mark.parametrize("named", ["the run's folder", "the ledger and the release"])
def test_the_command_writes_a_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    folder = made("second run on the ledger", tmp_path / "run")
    given = [str(folder)] if named == "the run's folder" else [str(folder / "ledger.jsonl"), "--release", str(folder)]
    assert run_here(monkeypatch, "ledger", *given, "--transcript", str(tmp_path / "transcript.jsonl")) == 0
    assert (tmp_path / "transcript.jsonl").read_bytes() == (folder / "transcript.jsonl").read_bytes()


class _Stopped(Exception):
    pass


class _Stops:
    """A progress display that ends the training after an answer."""

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
        raise _Stopped


def test_a_run_that_was_interrupted_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description of an answer may be lost with the process; the verifier says how many are."""
    monkeypatch.setattr("sfumato.training.checkpoint.FolderCheckpoint.due", True)
    images, plan = worst_case_images(), DPRealNVP.small().plan(Budget(3.0, 1e-5))
    with pytest.raises(_Stopped):
        train_run(tmp_path / "run", DPRealNVP.small(), images, plan, RunOptions(device="cpu", progress=_Stops()))
    train_run(tmp_path / "run", DPRealNVP.small(), images, plan, RunOptions(device="cpu", resume=True))
    found = verify_release.verify(tmp_path / "run", ledger=tmp_path / "run" / "ledger.jsonl")
    assert found["status"] == 0, found
    (note,) = [note for note in found["notes"] if "not described" in note]
    assert note.startswith("1 answers")


SETTINGS = [
    (1.0, 2.0, 1),
    (1.0, 6.0, 3),
    (0.5, 3.0, 20),
    (0.1, 1.126, 300),
    (0.1, 0.8, 300),
    (0.05, 1.0, 500),
    (0.02, 0.7, 1000),
    (0.02, 2.51, 1000),
    (0.01, 1.0, 2000),
    (0.1, 6.585, 1),
]


@pytest.mark.parametrize("delta", [1e-5, *(pytest.param(one, marks=pytest.mark.long) for one in (1e-9, 1e-11, 1e-13))])
def test_the_accountant_understates_no_delta(delta: float) -> None:
    """At the accountant's ε, the second accountant's δ is at most the δ that was asked for."""
    for rate, noise, steps in SETTINGS:
        event = SubsampledGaussian("sum", (Block("sum", noise),), rate, steps)
        stated = epsilon([event], delta)
        assert math.isfinite(stated)
        if rate == 1:
            found, error = verify_release.gaussian_delta(stated, math.sqrt(steps) / noise), 0.0
        else:
            found, error = verify_release.numeric_delta([event.to_json()], verify_release.REMOVE, stated)
        assert found - error <= delta * (1 + 1e-6), (rate, noise, steps)
        proved = verify_release.proved_epsilon([event.to_json()], verify_release.REMOVE, delta)
        assert stated <= proved * 1.02, (rate, noise, steps)


def test_replacement_and_single_steps() -> None:
    """Against δ of the unsampled Gaussian, to which both forms tend as the rate tends to one."""
    event = SubsampledGaussian("sum", (Block("sum", 2.0),), 1 - 1e-9, 1, shards=None).to_json()
    for eps in (0.0, 0.5, 2.0):
        exact = verify_release.gaussian_delta(eps, 0.5)
        assert verify_release.numeric_delta([event], verify_release.REMOVE, eps)[0] == pytest.approx(exact, rel=1e-6)
        twice = verify_release.gaussian_delta(eps, 1.0)
        assert verify_release.numeric_delta([event], verify_release.REPLACE, eps)[0] == pytest.approx(twice, rel=1e-6)
