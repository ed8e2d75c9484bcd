"""A run computed again from its data and its key, and compared with the ledger answer by answer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli.commands import run_here
from sfumato.audit.recompute import recompute
from sfumato.methods import DPMERF, find
from sfumato.methods.base import Method
from sfumato.methods.dp_vae import DPVAE
from sfumato.methods.scored import ScoredMethod, Tuning
from sfumato.privacy import Budget, BudgetExceeded, Ledger, Plan, RunRefused
from sfumato.training.run import Run, RunOptions, train_run
from verifier_cases.changes import chained_again
from verifier_cases.releases import METHOD_CASES
from worst_case import worst_case_images

KEPT = RunOptions(device="cpu", keep_key=True)
QUICK = ("dp-merf certified", "gs-wgan certified", "dp-vae certified")


def affordable(method: Method) -> Plan:
    for epsilon in (3.0, 30.0, 300.0):
        try:
            return method.plan(Budget(epsilon, 1e-5))
        except BudgetExceeded:
            continue
    raise AssertionError("no budget is enough")


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(one, marks=pytest.mark.long) for one in METHOD_CASES if one not in QUICK)]
)
def test_every_answer_has_the_hash_on_the_ledger(tmp_path: Path, case: str) -> None:
    name, variant = case.split()
    method, images = find(name).small(variant), worst_case_images()
    release = train_run(tmp_path / "run", method, images, affordable(method), KEPT)
    assert release.card.certified and "kept the key" in release.card.randomness
    found = recompute(tmp_path / "run", images)
    assert found.agrees and found.compared == found.answers > 0 and found.weights == 0.0
    assert (tmp_path / "run" / "internal" / "keys.json").stat().st_mode & 0o077 == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    method = replace(DPVAE.small(), steps=4)
    train_run(folder, method, worst_case_images(), affordable(method), KEPT)
    return folder


def edited(trained: Path, place: Path) -> Path:
    """A copy of the run, whose ledger has a transcript beside it for ``chained_again``."""
    shutil.copytree(trained, place / "run")
    shutil.copy(place / "run" / "ledger.jsonl", place / "run" / "transcript.jsonl")
    return place / "run"


def test_an_invented_answer_is_found(trained: Path, tmp_path: Path) -> None:
    """The chain, the head and the plan are as they should be; one answer is not what the program computes."""
    folder = edited(trained, tmp_path)

    def invent(entries: list[dict]) -> list[dict]:  # type: ignore[type-arg]
        answered = [answer for entry in entries for answer in entry.get("answers", ())]
        answered[2]["sha256"] = "0" * 64
        return entries

    honest = recompute(folder, worst_case_images())
    chained_again(invent)(folder)
    found = recompute(folder, worst_case_images())
    assert honest.agrees and not found.agrees
    assert found.different == 1 and found.first is not None and found.first[1] == 2
    assert recompute(folder, worst_case_images(), until=2).agrees, "the answers before it are right"


def test_another_key_gives_other_answers(trained: Path, tmp_path: Path) -> None:
    folder = edited(trained, tmp_path)
    keys = folder / "internal" / "keys.json"
    (kept,) = json.loads(keys.read_text())
    keys.write_text(json.dumps([{**kept, "key": "00" * 32}]))
    found = recompute(folder, worst_case_images())
    assert found.different == found.compared == found.answers and found.weights


def test_other_data_and_runs_without_a_key_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunRefused, match="not the collection"):
        recompute(trained, worst_case_images()._without(0, "image"))
    options = replace(KEPT, keep_key=False)
    train_run(tmp_path / "run", DPMERF.small(), worst_case_images(), affordable(DPMERF.small()), options)
    with pytest.raises(RunRefused, match="--keep-key"):
        recompute(tmp_path / "run", worst_case_images())
    tuning = Tuning.planned([replace(DPMERF.small(), features=n) for n in (32, 64)], Budget(3.0, 1e-5))
    tuning.run(tmp_path / "tuned", worst_case_images(), RunOptions(device="cpu"), progress=lambda: None)
    with pytest.raises(RunRefused, match="many trials"):
        recompute(tmp_path / "tuned", worst_case_images())


def test_a_run_with_its_accuracy_and_a_ledger_with_other_runs(tmp_path: Path) -> None:
    options = replace(KEPT, ledger=tmp_path / "ledger.jsonl")
    Ledger(tmp_path / "ledger.jsonl", Budget(30.0, 1e-5)).close()
    scored = ScoredMethod.of(DPMERF.small(), noise=30.0)
    for name, method in {"first": DPMERF.small(), "second": scored}.items():
        train_run(tmp_path / name, method, worst_case_images(), affordable(method), options)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    found = recompute(tmp_path / "second", worst_case_images(), ledger=tmp_path / "ledger.jsonl")
    assert found.agrees and found.weights == 0.0
    assert (tmp_path / "ledger.jsonl").read_bytes() == before, "nothing is charged"


class _Stopped(Exception):
    pass


class _StopsAfter:
    """A progress display that ends the training when this many steps are done."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
        if done >= self.steps:
            raise _Stopped


def test_of_a_resumed_run_the_first_part_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.training.checkpoint.FolderCheckpoint.due", True)
    method, images = replace(DPVAE.small(), steps=6), worst_case_images()
    plan = affordable(method)
    with pytest.raises(_Stopped):
        train_run(tmp_path / "run", method, images, plan, replace(KEPT, progress=_StopsAfter(3)))
    assert len(Run(tmp_path / "run").kept_keys()) == 1
    train_run(tmp_path / "run", method, images, plan, replace(KEPT, resume=True))
    first, second = Run(tmp_path / "run").kept_keys()
    assert first.key != second.key and first.collection == second.collection
    found = recompute(tmp_path / "run", images)
    assert found.agrees and 0 < found.compared < found.answers and found.weights is None
    assert any("resumed" in remark for remark in found.remarks)


def test_the_command_reads_the_collection_as_the_training_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(60) % 2)
    run, words = str(tmp_path / "run"), ["--set", "steps=3", "--set", "width=2", "--set", "latent_dim=2"]
    data = [str(tmp_path / "data.npz"), "--classes", "2", "--size", "8", "--hold-out", "0.2", "--device", "cpu"]
    budget = ["--method", "dp-vae", "--epsilon", "3", "--keep-key", "--out", run, "-q"]
    assert run_here(monkeypatch, "train", *data, *budget, *words) == 0
    capsys.readouterr()
    assert run_here(monkeypatch, "audit", "recompute", run, "--json", "-q") == 0
    assert json.loads(capsys.readouterr().out)["weights"] == 0.0
    assert run_here(monkeypatch, "audit", "recompute", run, "--until", "2", "-q") == 0
    assert "2 of 2 answers have the hash on the ledger, which has 3" in capsys.readouterr().out
    np.savez(tmp_path / "data.npz", images=pixels[::-1], labels=np.arange(60) % 2)
    assert run_here(monkeypatch, "audit", "recompute", run, "-q") != 0
