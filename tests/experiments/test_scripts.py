"""The scripts of ``experiments/`` choose what to run by what the result files hold."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from sfumato.experiments.results import load_results

ROOT = Path(__file__).parents[2]
RESULTS = load_results(ROOT / "docs" / "results")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "experiments" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_experiment_can_be_run_again_by_its_file_and_name(tmp_path: Path) -> None:
    rerun = script("rerun")
    cheap = RESULTS["predicted-dp-merf-3000"]
    assert rerun.candidates({"a": cheap}) == ["a"]
    words = rerun.words_again(cheap, "data", tmp_path)
    assert words[:5] == ["experiment", "run", str(ROOT / "experiments" / "expected-use.toml"), "--only", cheap.name]
    unknown = replace(cheap, provenance=replace(cheap.provenance, commit=None))
    slow = replace(cheap, rows=tuple(replace(row, seconds=math.inf) for row in cheap.rows))
    renamed = replace(cheap, name="no-such-experiment")
    assert rerun.candidates({"a": unknown, "b": slow, "c": renamed}) == []


def test_too_few_results_to_draw_from_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rerun = script("rerun")
    monkeypatch.setattr(rerun, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["rerun.py", "--data", "data"])
    with pytest.raises(SystemExit, match="Only 0 results can be drawn, and --count asks for 3"):
        rerun.main()
