"""The journey that every run of the tests takes: few images, one command, and pages that say what they are good for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands import run_here
from journeys.journey import MERF, digit_folder


def test_few_images_one_command_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, run = digit_folder(tmp_path / "data", count=60, seed=0), tmp_path / "run"
    words = [str(word) for word in (*MERF, "--epsilon", 1, "--declared-size", 60, "--note", "purpose=teaching")]
    assert run_here(monkeypatch, "train", str(data), *words, "--set", "iterations=5", "--out", str(run)) == 0
    assert run_here(monkeypatch, "report", str(run)) == 0
    assert "hopeless" in (run / "public.html").read_text(encoding="utf-8")
    assert "PRIVATE" in (run / "internal" / "internal.html").read_text(encoding="utf-8")
