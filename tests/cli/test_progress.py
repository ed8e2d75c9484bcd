"""What a progress display shows of the reading of a private collection does not depend on its number of records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.commands import run_here
from cli.test_train import SMALL
from sfumato.cli import console
from sfumato.cli.console import ProgressBar


def test_reading_shows_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither on the lines of a log nor in the file of the local page."""
    np.savez(tmp_path / "data.npz", images=np.zeros((8, 28, 28), np.uint8), labels=np.arange(8) % 2)
    words = ["train", str(tmp_path / "data.npz"), "--method", "dp-merf", "--epsilon", "3", "--classes", "2", *SMALL]
    file = tmp_path / "progress.json"
    assert run_here(monkeypatch, *words, "--out", str(tmp_path / "run"), "--progress-file", str(file)) == 0
    assert "reading the images …\n" in capsys.readouterr().err
    parts = json.loads(file.read_text())["parts"]
    assert all(part["total"] == 0 for part in parts if part["name"] == "reading the images")


def test_a_counter_that_begins_again_is_timed_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rounds of 100 s, an hour apart: at half of each, 50 s are left."""
    now = [0.0]
    console.reset_flags()
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with ProgressBar() as bar:
        for _ in range(2):
            for done in range(0, 101, 10):
                bar.report("epochs", done, 100)
                now[0] += 10
            now[0] += 3600
    left = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epochs: 50 of")]
    assert left == ["epochs: 50 of 100, about 50 s left"] * 2
