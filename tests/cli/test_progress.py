"""What a progress display shows of the reading of a private collection does not depend on its number of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.commands import run_here
from cli.test_train import SMALL
from sfumato.cli import console
from sfumato.cli.console import ProgressBar, ProgressFile

PARTS = (1, 2, 3, 7, 40)


def read_in(parts: int, bar: ProgressBar) -> None:
    bar.report("reading the images", 0, 0)
    for part in range(1, parts + 1):
        bar.per_cent(100 * part // parts)
    bar.per_cent(100)


def test_lines_show_that_images_are_read_and_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    shown = set()
    for parts in PARTS:
        with ProgressBar() as bar:
            read_in(parts, bar)
        shown.add(capsys.readouterr().err)
    assert shown == {"reading the images …\n"}


def test_bar_and_file_show_every_tenth_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(console, "_progress_file", [tmp_path / "progress.json"])
    for parts in PARTS:
        drawn: list[int] = []
        written: list[int] = []
        with ProgressBar() as bar, monkeypatch.context() as patch:
            patch.setattr(bar, "_lines", False)
            patch.setattr(bar._bar, "update", lambda task, *, completed, drawn=drawn, **_: drawn.append(completed))
            patch.setattr(ProgressFile, "report", lambda file, name, done, *_, written=written: written.append(done))
            read_in(parts, bar)
        assert drawn == written == [0, *range(10, 101, 10)]


def test_a_collection_that_is_read_at_once_is_shown_like_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def watched(bar: ProgressBar, done: int, **_: Any) -> None:
        seen.append(done)

    monkeypatch.setattr(ProgressBar, "per_cent", watched)
    np.savez(tmp_path / "data.npz", images=np.zeros((8, 28, 28), np.uint8), labels=np.arange(8) % 2)
    words = ["train", str(tmp_path / "data.npz"), "--method", "dp-merf", "--epsilon", "3", "--classes", "2", *SMALL]
    assert run_here(monkeypatch, *words, "--out", str(tmp_path / "run"), "--quiet") == 0
    assert seen == [100]


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
