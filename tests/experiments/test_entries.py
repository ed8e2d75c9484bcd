"""Entries run by the command itself at small scale: killed and continued, and put on the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data.samples import write_idx
from paper_page import by_entry, page
from sfumato.cli.main import main
from sfumato.data.digits import draw_digits
from sfumato.experiments.datasets import DatasetLocator
from sfumato.experiments.entries import Scale, find
from sfumato.experiments.reproduction import compared, lay_out_entry
from sfumato.experiments.results import ResultSet, load_results
from sfumato.experiments.training import Baselines, Trial
from sfumato.privacy import Ledger


@pytest.fixture(scope="module")
def locator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with digits in place of MNIST and Fashion-MNIST, and empty files in place of faces."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("mnist", "fashion-mnist"):
        for split, count, seed in (("train", 150, 1), ("t10k", 60, 2)):
            digits = draw_digits(count, seed=seed)
            write_idx(folder / name, digits.pixels, digits.labels, split=split)
    (folder / "celeba").mkdir()
    for name in ("64-train", "64-test", "128-train", "128-test"):
        (folder / "celeba" / f"celeba-{name}.parquet").touch()
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit status of the command in this process."""
    monkeypatch.setattr(sys, "argv", ["sfumato", "reproduce", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def result(out: Path) -> ResultSet:
    return ResultSet.load(out / "result.json")


@pytest.mark.long
def test_an_entry_that_was_killed_continues(
    locator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["dp-lflow", "table-3", "--scale", "small", "--data", str(locator), "--out", str(out), "--jobs", "1"]
    command = [sys.executable, "-m", "sfumato", "reproduce", *words, "--device", "cpu"]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    while not (done := list(out.glob("*/runs/*/*/*/internal/evaluation.json"))):
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    ledgers = {path: Ledger.read(path).head for path in (done[0].parent.parent,) for path in path.glob("ledger.jsonl")}
    assert len(ledgers) == 1 and not (out / "result.json").exists()

    assert run(monkeypatch, *words, "--device", "cpu") == 0
    printed = capsys.readouterr()
    assert "4 tasks" in printed.err and "4 of 4" not in printed.err
    assert {path: Ledger.read(path).head for path in ledgers} == ledgers
    assert "SMALL SCALE: at most 150 records" in printed.out and "10 steps" in printed.out
    assert "reproduces nothing" in printed.out and "NOT PRIVATE" in printed.out

    found = result(out)
    paper, entry = find("dp-lflow", "table-3")
    rows = compared(paper, entry, found.rows)
    assert [row.claimed for row in rows] == ["10", "1", "10", "1"]
    assert [row.holds for row in rows] == ["15.74", "2.32", "15.74", "2.32"]
    for row, printed in zip(found.rows, rows, strict=True):
        assert row.epsilon is not None and row.spent is not None and 0.9 * row.epsilon < row.spent <= row.epsilon
        assert row.unit == "image" and row.data.sha256 and row.log_sha256 and row.data.records == 150
        assert len(row.values) == 11 and 0 <= row.values["AUROC, average"].mean <= 1
        assert printed.printed["AUROC, average"].mean > 0.8  # type: ignore[union-attr]
    assert "Samples" in (out / "result.html").read_text()

    again = [*words[:3], "full", *words[4:]]
    assert run(monkeypatch, *again, "--device", "cpu") == 2
    assert "holds a reproduction with another scale" in capsys.readouterr().err


@pytest.mark.long
def test_an_entry_ends_on_the_page(
    locator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "results"
    words = ["dp-lflow", "table-4", "--scale", "small", "--data", str(locator), "--out", str(tmp_path / "out")]
    assert run(monkeypatch, *words, "--jobs", "1", "--device", "cpu", "--results", str(kept), "--json") == 0
    found = result(tmp_path / "out")
    assert found == ResultSet.load(kept / "dp-lflow-table-4-small.json")
    assert found == ResultSet.from_json(json.loads(capsys.readouterr().out))
    assert [row.variant for row in found.rows] == ["certified", "conditional"] * 2
    for row in found.rows:
        assert "FID" not in row.values, "the small scale does without Inception"
        assert row.values["own-class distance"].mean > 0 and 0 <= row.values["CNN"].mean <= 100
        assert row.megabytes and row.seconds and row.peak_memory
    assert {"python", "torch"} <= set(found.provenance.versions) and found.provenance.device

    words = ["privae", "table-1", "--scale", "small", "--out", str(tmp_path / "p"), "--jobs", "1"]
    assert run(monkeypatch, *words, "--results", str(kept)) == 0
    moved = result(tmp_path / "p").rows
    assert [row.values["moves the mean by, × 10⁻⁴"].mean for row in moved[:3]] == pytest.approx(
        [2 * (2 * 256 - 1) / 256, 4, 1e4 * (0.05 / 256 + 2 * 0.005 / 16)]
    )
    assert moved[1].holds is not None and moved[1].holds > 7
    assert moved[2].holds is not None and 1 < moved[2].holds < 1.3
    assert not any(row.method for row in moved)

    text = page(by_entry(list(load_results(kept).values())))
    assert "39 entries; 0 run at full scale, 0 in part, 39 not run" in text, "the small scale reproduces nothing"


def test_a_substitute_is_used_and_named(locator: Path, tmp_path: Path) -> None:
    paper, entry = find("dp-lflow", "figure-5")
    scale = Scale.of("small", entry)
    layout = lay_out_entry(
        paper, entry, locator=DatasetLocator.of([str(locator)]), scale=scale, out=tmp_path, device="cpu"
    )
    [row] = layout.lines
    assert row.evaluated is not None
    data = row.evaluated.conditions.data
    assert data.remark == "CelebA-HQ, gender, 256×256 is not available; CelebA, gender, 128×128 replaces it"
    assert data.train.name == "celeba-128-train.parquet"
    assert row.evaluated.trainings[0].method.parameters()["latent_dim"] == 64

    own = f"celeba-hq-gender-256={locator / 'celeba' / 'celeba-64-train.parquet'}"
    layout = lay_out_entry(
        paper, entry, locator=DatasetLocator.of([str(locator), own]), scale=scale, out=tmp_path, device="cpu"
    )
    assert layout.lines[0].evaluated is not None and layout.lines[0].evaluated.conditions.data.remark == ""


def test_settings_that_differ_only_in_sampling_share_a_training(locator: Path, tmp_path: Path) -> None:
    paper, entry = find("dppm", "figure-3")
    for name, trainings in (("small", 1), ("full", 1)):
        scale = Scale.of(name, entry)
        layout = lay_out_entry(
            paper, entry, locator=DatasetLocator.of([str(locator)]), scale=scale, out=tmp_path, device="cpu"
        )
        trials = [task for task in layout.tasks if isinstance(task, Trial)]
        assert len(trials) == trainings
        found = [variant.parameters for variant in trials[0].variants]
        assert [parameters["step_size"] for parameters in found[:4]] == [0.05, 0.15, 0.5, 1.5]
        assert all(parameters["sampler"] == "hamiltonian" for parameters in found)
        assert len({path for row in layout.lines if row.evaluated for path in row.evaluated.files}) == 6
        assert any(isinstance(task, Baselines) for task in layout.tasks) == (name == "full")


def test_what_is_missing_is_an_error_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["dp-lflow", "table-4", "--scale", "small", "--out", str(out)]
    assert run(monkeypatch, *words, "--data", str(tmp_path)) == 2
    assert "mnist is not in" in capsys.readouterr().err
    assert run(monkeypatch, *words, "--data", "mnst=here") == 2
    assert "did you mean 'mnist'" in capsys.readouterr().err
    assert run(monkeypatch, *words, "--data", f"mnist={tmp_path / 'nowhere'}") == 2
    assert "there is no such file or folder" in capsys.readouterr().err
    assert run(monkeypatch, "dp-lflow", "table-9") == 2
    assert not out.exists()
