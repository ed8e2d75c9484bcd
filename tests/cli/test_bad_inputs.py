"""Every bad record and every bad collection, through the command: one line, exit status 2, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands import run_here
from data.bad_collections import COLLECTIONS
from data.bad_records import RECORDS, SECRET

CASES = [(make.__name__, make) for make in RECORDS] + [(name, make) for name, make, _ in COLLECTIONS]


def test_there_are_at_least_thirty() -> None:
    assert len(CASES) >= 30


def test_one_line_and_nothing_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, make in enumerate([case[1] for case in CASES]):
        here = tmp_path / str(number)
        here.mkdir()
        monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
        place, out = make(here / "c"), here / "out"
        words = ["train", str(place), "--method", "dp-merf", "--epsilon", "1", "--out", str(out)]
        if make.__name__.startswith(("idx", "label", "nan", "null", "picture")):
            words += ["--classes", "3"]
        assert run_here(monkeypatch, *words) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said and SECRET not in said
        assert len([line for line in said.splitlines() if line.startswith("error:")]) == 1
        assert not out.exists()
