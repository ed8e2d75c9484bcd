"""The list is complete and honest about what is missing; the page in the documentation is up to date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sfumato.cli.main import main
from sfumato.experiments.papers.catalogue import state
from sfumato.experiments.papers.collection import DatasetLocator
from sfumato.experiments.papers.figure import draw, standalone
from sfumato.experiments.papers.page import page, read_results
from sfumato.experiments.papers.specification import Case, Entry, Figure, Setting, find
from sfumato.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_has_every_entry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sfumato", "reproduce", "list", "--json", "--data", "nowhere"])
    with pytest.raises(SystemExit):
        main()
    items = json.loads(capsys.readouterr().out)
    assert len(items) == 38
    assert sum(item["trainings"] > 0 for item in items) >= 25, "entries with something to run"
    for item in items:
        assert item["data"] and item["title"] and item["status"]
        assert set(item["seconds"]) == {"small", "full"}
    by_name = {(item["paper"], item["entry"]): item for item in items}
    assert by_name["dp-lflow", "table-1"]["status"] == "data not available"
    assert "MNIST is not there" in by_name["dp-lflow", "table-1"]["remarks"]
    assert by_name["privae", "table-1"]["status"] == "ready"
    lflow = by_name["dp-lflow", "table-1"]
    assert lflow["trainings"] == 50 and (
        lflow["device"] != "cpu" or lflow["seconds"]["full"] > lflow["seconds"]["small"]
    )


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    for name in ("64-train", "64-test", "128-train", "128-test"):
        (tmp_path / "celeba").mkdir(exist_ok=True)
        (tmp_path / "celeba" / f"celeba-{name}.parquet").touch()
    shelf = DatasetLocator.of([str(tmp_path)])
    status, remarks = state(find("dp-lflow", "figure-5")[1], shelf)
    assert status == "data not available, a substitute is"
    assert remarks == ["CelebA-HQ, gender, 256×256 is not available; CelebA, gender, 128×128 stands in"]
    status, remarks = state(find("dppm", "figure-3")[1], shelf)
    assert status == "ready" and remarks == ["15,000 of CelebA's 182,637 training images"]

    def entry(**setting: str) -> Entry:
        one = Setting("x", **setting)  # type: ignore[arg-type]
        return Entry("e", "t", "sinkhorn", (Case("mnist", 1.0),), (one,))

    assert "no-such-method" not in METHODS
    assert state(entry(method="no-such-method"), shelf) == (
        "method not available",
        ["no-such-method is not registered"],
    )
    assert state(entry(missing="not built"), shelf) == ("cannot be run", ["not built"])


def test_the_page_is_up_to_date() -> None:
    """Written by: sfumato reproduce page"""
    assert (DOCS / "reproduction.md").read_text() == page(read_results(DOCS / "results"))


def test_a_figure_shows_ours_and_the_paper_s() -> None:
    value = {"paper": 80.0, "paper_std": None, "mean": 70.0, "std": 1.5}
    rows = [
        {"setting": "A", "data": "D", "claimed": claimed, "ran": True, "megabytes": 1.0 + place, "parameters": {},
         "values": {"CNN": value}}
        for place, claimed in enumerate(("1", "10", "∞"))
    ]  # fmt: skip
    drawn = draw({"rows": rows}, Figure("epsilon", "CNN"))
    assert drawn is not None and drawn.count("A, D, paper") == 2 and "ε" in drawn
    sizes = draw({"rows": rows}, Figure("megabytes", "CNN", "MB"))
    assert sizes is not None and "D, ε ∞" in sizes
    assert standalone(drawn).startswith('<svg class="chart"') and "xmlns" in standalone(drawn)
    assert draw({"rows": []}, Figure("epsilon", "CNN")) is None
