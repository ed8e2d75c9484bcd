"""A disk that is full, or a place that cannot be written to: one line, and nothing is lost or half written."""

from __future__ import annotations

import resource
import shutil
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.commands import run_here
from journeys.journey import MERF, digit_folder

TRAIN = (*map(str, MERF), "--set", "iterations=2", "--epsilon", "3")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to let a file grow further, as a full disk does; Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_every_command_that_writes_says_so_in_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run, file = digit_folder(tmp_path / "data", count=60, seed=0), tmp_path / "run", tmp_path / "file"
    assert run_here(monkeypatch, "train", str(data), *TRAIN, "--out", str(run)) == 0
    assert run_here(monkeypatch, "sample", str(run), "--count", "60", "--out", str(tmp_path / "synthetic")) == 0
    file.write_text("")
    real = ("--real", str(data), "--real-test", str(digit_folder(tmp_path / "test", count=60, seed=1)), "--no-cache")
    commands = [
        ("train", str(data), *TRAIN, "--out", str(tmp_path / "other")),
        ("sample", str(run), "--count", "500", "--format", "npz", "--out", str(tmp_path / "more")),
        ("report", str(run)),
        ("evaluate", str(tmp_path / "synthetic"), *real, "--json", str(tmp_path / "evaluation.json")),
    ]
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    for command in commands:
        capsys.readouterr()
        with files_of_at_most(4096):
            assert run_here(monkeypatch, *command) == 2, command
        told = capsys.readouterr().err.splitlines()
        assert "as large as it has to" in told[-1] and sum(line.startswith("error: ") for line in told) == 1
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "more").exists() and not (tmp_path / "evaluation.json").exists()
    assert not (tmp_path / "other" / "release").exists() and not list(tmp_path.rglob("*.new"))
    for command in (("train", str(data), *TRAIN), ("sample", str(run))):
        assert run_here(monkeypatch, *command, "--out", str(file / "x")) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    assert run_here(monkeypatch, "report", str(data)) == 2
    assert "holds no finished run" in capsys.readouterr().err


def test_a_training_is_not_begun_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = digit_folder(tmp_path / "data", count=20, seed=0)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**40, 2**40, 2**20))
    assert run_here(monkeypatch, "train", str(data), *TRAIN, "--out", str(tmp_path / "run")) == 2
    assert "no space left" in capsys.readouterr().err and not (tmp_path / "run").exists()
