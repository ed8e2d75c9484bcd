"""Entries run by the command itself at small scale: killed and taken up again, with a substitute, and as a figure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.samples import encoded, write_idx
from sfumato.cli import main
from sfumato.data.digits import draw_digits
from sfumato.privacy import Ledger
from sfumato.reproduction.specification import find


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with digits in place of MNIST and Fashion-MNIST, and noise in place of faces."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("mnist", "fashion-mnist"):
        for split, count, seed in (("train", 150, 1), ("t10k", 60, 2)):
            digits = draw_digits(count, seed=seed)
            write_idx(folder / name, digits.pixels, digits.labels, split=split)
    (folder / "celeba").mkdir()
    random = np.random.default_rng(0)
    for size in (64, 128):
        for split, count in (("train", 40), ("test", 16)):
            images = random.integers(0, 256, (count, 3, size, size), dtype=np.uint8)
            rows = [{"bytes": encoded(image), "path": ""} for image in images]
            labels = pa.array(np.arange(count) % 2, pa.int8())
            pq.write_table(
                pa.table({"image": rows, "male": labels}), folder / "celeba" / f"celeba-{size}-{split}.parquet"
            )
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
    command = [sys.executable, "-m", "sfumato.cli", "reproduce", *words, "--device", "cpu"]
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


def test_a_substitute_stands_in_and_is_named(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dp-lflow", "figure-5", "--scale", "small", "--data", str(shelf), "--out", str(tmp_path / "out")]
    kept = tmp_path / "results"
    assert run(monkeypatch, *words, "--jobs", "1", "--device", "cpu", "--results", str(kept)) == 0
    printed = capsys.readouterr().out
    assert "CelebA-HQ, gender, 256×256 is not available; CelebA, gender, 128×128 stands in" in printed
    found = result(tmp_path / "out")
    assert found == json.loads((kept / "dp-lflow-figure-5-small.json").read_text())
    [row] = found["rows"]
    assert row["used"] == "CelebA, gender, 128×128" and row["parameters"]["code"] == 64
    values = row["values"]
    assert values["LR"]["paper"] == 77.4 and 0 <= values["LR"]["mean"] <= 100
    assert values["FID"]["mean"] is None, "the small scale goes without Inception"
    assert values["own-class distance"]["paper"] is None and values["own-class distance"]["mean"] > 0


def test_settings_that_only_draw_differently_share_a_training(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["dppm", "figure-3", "--scale", "small", "--data", str(shelf), "--out", str(tmp_path / "out")]
    assert run(monkeypatch, *words, "--jobs", "1", "--device", "cpu") == 0
    assert len(list((tmp_path / "out").glob("*/runs/*/*/*/ledger.jsonl"))) == 1
    rows = result(tmp_path / "out")["rows"]
    assert [row["parameters"]["step_size"] for row in rows[:4]] == [0.5, 0.05, 0.15, 1.5]
    assert {row["parameters"]["kinetic"] for row in rows} == {"gaussian", "rayleigh", "uniform"}
    assert len({row["epsilon"] for row in rows}) == 1
    assert len({row["values"]["own-class distance"]["mean"] for row in rows}) > 1
    picture = (tmp_path / "out" / "figure.svg").read_text()
    assert picture.startswith("<svg") and "own-class distance" in picture and "0.15" in picture


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


def test_one_record_moves_what_the_paper_pays_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PRIVAE's table 1: a term of the whole batch turns around, so that twice its clip moves."""
    from sfumato.reproduction.experiments import sensitivity

    entry = find("privae", "table-1")[1]
    case = entry.cases[0]
    found = {setting.name: sensitivity(setting, case, "full") for setting in entry.settings}
    moved = {name: outcome.values["moves the mean by, × 10⁻⁴"] for name, outcome in found.items()}
    assert moved["DP-SGD, micro-aggregation"] == pytest.approx(2 * (2 * 256 - 1) / 256)
    assert moved["DP-SGD, batch-aggregation"] == pytest.approx(4)
    assert moved["term-wise DP-SGD"] == pytest.approx(1e4 * (0.05 / 256 + 2 * 0.005 / 16))
    assert found["DP-SGD, batch-aggregation"].holds > 7 * case.epsilon  # type: ignore[operator]
    assert case.epsilon < found["term-wise DP-SGD"].holds < 1.3 * case.epsilon  # type: ignore[operator]
