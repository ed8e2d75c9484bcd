"""What a user does wrong gets one clear line, exit status 2, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.commands import run_here

SMALL = ("--set", "features=32", "--set", "width=2", "--set", "iterations=2", "--set", "batch_size=10")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "collection.npz"
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(30) % 3)
    return path


@pytest.fixture(scope="module")
def with_persons(data: Path) -> Path:
    path, found = data.with_name("with-persons.npz"), np.load(data)
    np.savez(path, images=found["images"], labels=found["labels"], persons=np.arange(30) // 2)
    return path


MISTAKES = {
    "a path with nothing": (["/no/such/place", "--classes", "3"], "there is nothing at /no/such/place"),
    "an unknown method": (["DATA", "--classes", "3", "--method", "dp-merff"], "did you mean 'dp-merf'"),
    "no label set": (["DATA"], "--classes 10"),
    "a wrong label set": (["DATA", "--classes", "2"], "not in the declared label set"),
    "which file is not said": (["DATA", "--classes", "2"], "--internal"),
    "an unknown array": (["DATA", "--classes", "3", "--label-column", "truth"], "no array called 'truth'"),
    "no CUDA": (["DATA", "--classes", "3", "--device", "cuda"], "choose --device cpu"),
    "an unknown device": (["DATA", "--classes", "3", "--device", "tpu9"], "--device is cpu, cuda or auto"),
    "delta of one half": (["DATA", "--classes", "3", "--delta", "0.5"], "--delta 0.5 is too large"),
    "delta above 1/N": (["DATA", "--classes", "3", "--delta", "1e-4", "--declared-size", "20000"], "1/20000"),
    "a person without persons": (["DATA", "--classes", "3", "--unit", "person"], "--person-column"),
    "an unknown unit": (["DATA", "--classes", "3", "--unit", "house"], "--unit is image or person"),
    "no epsilon": (["DATA", "--classes", "3", "--epsilon", "-1"], "epsilon must be a positive number"),
    "a folder for a config file": (["DATA", "--config", "/"], "directory"),
    "a ledger that is none": (["DATA", "--classes", "3", "--ledger", "DATA"], "ledger"),
    "a parameter that is none": (["DATA", "--classes", "3", "--set", "feature=3"], "did you mean 'features'"),
}


def test_one_line_and_nothing_left(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, mistake in enumerate(MISTAKES):
        here = tmp_path / str(number)
        here.mkdir()
        words, hint = MISTAKES[mistake]
        given = [str(data) if word == "DATA" else word for word in words]
        if "--method" not in given:
            given += ["--method", "dp-merf"]
        if "--epsilon" not in given:
            given += ["--epsilon", "1"]
        out = here / "out"
        assert run_here(monkeypatch, "train", *given, *SMALL, "--out", str(out)) == 2
        said = capsys.readouterr().err
        assert hint in said and "Traceback" not in said
        assert len([line for line in said.splitlines() if line.startswith("error:")]) == 1
        assert not out.exists() and list(here.iterdir()) == []


def test_a_comparison_that_cannot_start_leaves_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (words, hint) in enumerate(
        [
            (["--classes", "2", "--hold-out", "0.3"], "not in the declared label set"),
            (["--classes", "3"], "has no test part"),
            (["--classes", "3", "--hold-out", "0.3", "--unit", "person"], "--person-column"),
            (["--classes", "3", "--hold-out", "2"], "--hold-out is a share"),
            (["--classes", "3", "--hold-out", "0.3", "--epsilon", "one"], "--epsilon takes numbers"),
        ]
    ):
        own_folder = tmp_path / str(number)
        own_folder.mkdir()
        out = str(own_folder / "out")
        assert run_here(monkeypatch, "compare", str(data), "--methods", "dp-merf", *SMALL, *words, "--out", out) == 2
        assert hint in capsys.readouterr().err and list(own_folder.iterdir()) == []


def test_named_persons_are_the_unit_unless_the_command_says_otherwise(
    with_persons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(with_persons), "--method", "dp-merf", "--classes", "3", "--epsilon", "1", *SMALL]
    assert run_here(monkeypatch, *words, "--out", str(tmp_path / "one")) == 0
    assert "all images of a person" in capsys.readouterr().err
    assert json.loads((tmp_path / "one" / "release" / "card.json").read_text())["unit"] == "person"
    assert run_here(monkeypatch, *words, "--unit", "image", "--out", str(tmp_path / "two")) == 0
    assert "k times the ε" in capsys.readouterr().err
    assert json.loads((tmp_path / "two" / "release" / "card.json").read_text())["unit"] == "image"


def test_delta_follows_from_the_declared_size(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(data), "--method", "dp-merf", "--classes", "3", "--epsilon", "1", *SMALL]
    assert run_here(monkeypatch, *words, "--declared-size", "60000", "--out", str(tmp_path / "run")) == 0
    assert json.loads((tmp_path / "run" / "release" / "card.json").read_text())["delta"] == 1e-6
    capsys.readouterr()
    run = str(tmp_path / "run")
    assert run_here(monkeypatch, "ledger", f"{run}/ledger.jsonl", "--release", run) == 0
    assert "is on this ledger" in capsys.readouterr().out


def test_a_run_that_the_ledger_refuses_leaves_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = str(tmp_path / "ledger.jsonl")
    assert run_here(monkeypatch, "ledger", ledger, "--create", "--epsilon", "0.5", "--delta", "1e-6") == 0
    words = ["train", str(data), "--method", "dp-merf", "--classes", "3", *SMALL, "--ledger", ledger]
    assert run_here(monkeypatch, *words, "--epsilon", "1", "--out", str(tmp_path / "run")) == 2
    assert "0.5" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert run_here(monkeypatch, *words, "--epsilon", "0.4", "--out", str(tmp_path / "run")) == 0
    assert json.loads((tmp_path / "run" / "release" / "card.json").read_text())["delta"] == 1e-6


def test_what_epsilon_means(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(monkeypatch, "plan", "--epsilon-table", "--json") == 0
    rows = {row["epsilon"]: row for row in json.loads(capsys.readouterr().out)}
    assert {0.5, 1.0, 3.0, 10.0} <= rows.keys()
    assert round(rows[1.0]["factor"], 3) == 2.718 and round(rows[1.0]["best_guess"], 3) == 0.731
    assert run_here(monkeypatch, "plan", "--epsilon-table") == 0
    said = capsys.readouterr().out
    assert "73.2 %" in said and "reasonable" in said
