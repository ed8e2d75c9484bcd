"""A method in a module of the user's own works in every command, from the plan to the comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from journeys.journey import SMALL, digit_folder, sfumato
from methods.test_registry import MINE

NAME = "module_of_a_researcher"


@pytest.mark.long
def test_a_method_of_ones_own_in_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{NAME}.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    data, method = digit_folder(tmp_path / "data", count=200, seed=1), f"{NAME}:MyMethod"
    assert "my-method (certified)" in sfumato("plan", method, "--epsilon", 3, "--delta", 1e-5)
    sfumato("train", data, "--method", method, *SMALL, "--epsilon", 3, "--out", "run")
    assert json.loads(Path("run/release/card.json").read_text())["method"] == method
    assert "--allow-custom" in sfumato("sample", "run", "--count", 20, "--out", "refused", status=2)
    assert not Path("refused").exists()
    sfumato("sample", "run", "--count", 20, "--out", "synthetic", "--allow-custom")
    assert "--allow-custom" in sfumato("report", "run", "--scan", status=2)
    sfumato("report", "run", "--allow-custom")
    assert "nothing flagged" in sfumato("audit", "replay", method, "--pairs", 1, "--search", 0)
    words = ("--methods", f"dp-merf,{method}", "--epsilon", 3, "--images", 50, "--no-inception", "--jobs", 1)
    sfumato("compare", data, *words, "--hold-out", 0.3, "--protocol", "dppm", "--out", "comparison", *SMALL)
    entries = json.loads(Path("comparison/comparison.json").read_text())["rows"]
    assert {entry["method"] for entry in entries} == {None, "dp-merf", "my-method"}
