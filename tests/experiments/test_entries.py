"""Entries run by the command itself at small scale: killed and taken up again, and put on the page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from data.samples import write_idx
from sfumato.cli.main import main
from sfumato.data.digits import draw_digits
from sfumato.experiments.papers.collection import DatasetLocator
from sfumato.experiments.papers.rows import lay_out
from sfumato.experiments.papers.scale import Scale
from sfumato.experiments.papers.specification import find
from sfumato.experiments.trial import Baselines, Trial
from sfumato.privacy import Ledger


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def result(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "result.json").read_text())
    return found


def test_killed_and_taken_up_again(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["dp-lflow", "table-3", "--scale", "small", "--data", str(shelf), "--out", str(out), "--jobs", "1"]
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
    assert "SMALL SCALE: N is at most 1,000 records" in printed.out and "10 steps" in printed.out
    assert "no match with the paper is claimed" in printed.out and "NOT PRIVATE" in printed.out

    found = result(out)
    assert [row["claimed"] for row in found["rows"]] == ["10", "1", "10", "1"]
    assert [row["holds"] for row in found["rows"]] == ["15.74", "2.32", "15.74", "2.32"]
    for row in found["rows"]:
        assert row["ran"] and 0.9 * float(row["claimed"]) < row["epsilon"] <= float(row["claimed"])
        assert len(row["values"]) == 11
        assert row["values"]["AUROC, average"]["paper"] > 0.8 and 0 <= row["values"]["AUROC, average"]["mean"] <= 1
    assert "Samples" in (out / "result.html").read_text()

    again = [*words[:3], "full", *words[4:]]
    assert run(monkeypatch, *again, "--device", "cpu") == 2
    assert "holds a reproduction with another scale" in capsys.readouterr().err


def test_an_entry_ends_on_the_page(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, page = tmp_path / "results", tmp_path / "page.md"
    words = ["dp-lflow", "table-4", "--scale", "small", "--data", str(shelf), "--out", str(tmp_path / "out")]
    assert run(monkeypatch, *words, "--jobs", "1", "--device", "cpu", "--results", str(kept), "--json") == 0
    found = result(tmp_path / "out")
    assert found == json.loads((kept / "dp-lflow-table-4-small.json").read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert [row["variant"] for row in found["rows"]] == ["certified", "conditional"] * 2
    for row in found["rows"]:
        assert list(row["values"]) == ["FID", "own-class distance", "LR", "MLP", "CNN"]
        assert row["values"]["FID"]["mean"] is None, "the small scale goes without Inception"
        assert row["values"]["own-class distance"]["mean"] > 0 and 0 <= row["values"]["CNN"]["mean"] <= 100
        assert row["megabytes"] > 0 and row["seconds"] > 0
    assert [row["values"]["CNN"]["paper"] for row in found["rows"]] == [95.0, 91.8, 88.3, 77.5]

    assert run(monkeypatch, "privae", "table-1", "--scale", "small", "--out", str(tmp_path / "p"), "--jobs", "1",
               "--results", str(kept)) == 0  # fmt: skip
    moved = result(tmp_path / "p")["rows"]
    assert [row["values"]["moves the mean by, × 10⁻⁴"]["mean"] for row in moved[:3]] == pytest.approx(
        [2 * (2 * 256 - 1) / 256, 4, 1e4 * (0.05 / 256 + 2 * 0.005 / 16)]
    )
    assert float(moved[1]["holds"]) > 7 and 1 < float(moved[2]["holds"]) < 1.3
    assert not any(row["trained"] for row in moved)

    assert run(monkeypatch, "page", "--results", str(kept), "--out", str(page)) == 0
    text = page.read_text()
    assert "38 entries; 0 run at full scale, 0 in part, 2 at small scale only, 36 not run" in text
    assert "table 4: One model for each class against one conditional model, MNIST (small scale)" in text
    assert "no match with the paper is claimed" in text


def test_a_substitute_stands_in_and_is_named(shelf: Path, tmp_path: Path) -> None:
    entry = find("dp-lflow", "figure-5")[1]
    scale = Scale.of("small", entry)
    layout = lay_out(entry, shelf=DatasetLocator.of([str(shelf)]), scale=scale, out=tmp_path, device="cpu")
    [row] = layout.rows
    assert row.found is not None and row.terms is not None
    assert row.found.remark == "CelebA-HQ, gender, 256×256 is not available; CelebA, gender, 128×128 stands in"
    assert row.terms.data.name == "celeba-128-train.parquet" and row.cells[0].method.parameters()["latent_dim"] == 64

    own = f"celeba-hq-gender-256={shelf / 'celeba' / 'celeba-64-train.parquet'}"
    layout = lay_out(entry, shelf=DatasetLocator.of([str(shelf), own]), scale=scale, out=tmp_path, device="cpu")
    assert layout.rows[0].found is not None and layout.rows[0].found.remark == ""


def test_settings_that_only_draw_differently_share_a_training(shelf: Path, tmp_path: Path) -> None:
    entry = find("dppm", "figure-3")[1]
    for name, trainings in (("small", 1), ("full", 1)):
        scale = Scale.of(name, entry)
        layout = lay_out(entry, shelf=DatasetLocator.of([str(shelf)]), scale=scale, out=tmp_path, device="cpu")
        trials = [task for task in layout.tasks if isinstance(task, Trial)]
        assert len(trials) == trainings
        assert [look.sampling.get("step_size") for look in trials[0].looks[:4]] == [None, 0.05, 0.15, 1.5]
        assert len({path for row in layout.rows for path in row.files}) == 6
        assert any(isinstance(task, Baselines) for task in layout.tasks) == (name == "full")


def test_what_is_not_there_is_said_before_anything_runs(
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
