"""Every bad record and every bad collection, through the command: one line, exit status 2, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands import run_here
from data.bad_collections import COLLECTIONS
from data.bad_records import RECORDS, SECRET

CASES = [(make.__name__, make) for make in RECORDS] + [(name, make) for name, make, _ in COLLECTIONS]


def test_there_are_at_least_thirty() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize("make", [case[1] for case in CASES], ids=[case[0] for case in CASES])
def test_one_line_and_nothing_left(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place, out = make(tmp_path / "c"), tmp_path / "out"
    words = ["train", str(place), "--method", "dp-merf", "--epsilon", "1", "--out", str(out)]
    if make.__name__.startswith(("idx", "label", "nan", "null", "picture")):
        words += ["--classes", "3"]
    assert run_here(monkeypatch, *words) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said and SECRET not in said
    assert len([line for line in said.splitlines() if line.startswith("error:")]) == 1
    assert not out.exists()
