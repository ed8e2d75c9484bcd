"""The list is complete and honest about what is missing; the page in the documentation is up to date."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paper_page import by_entry, page
from sfumato.cli.console import console
from sfumato.cli.experiment import print_result
from sfumato.cli.main import main
from sfumato.experiments.datasets import DatasetLocator
from sfumato.experiments.entries import Case, Entry, Figure, Setting, Value, find, papers, state
from sfumato.experiments.reproduction import Compared
from sfumato.experiments.results import DataUsed, Measured, Provenance, ResultRow, ResultSet, load_results
from sfumato.methods import METHODS
from sfumato.planning.costs import costs
from sfumato.report.papers import draw, lines, standalone
from sfumato.texts import duration

DOCS = Path(__file__).parents[2] / "docs"


def test_the_list_has_every_entry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["sfumato", "reproduce", "list", "--json", "--data", "nowhere"])
    with pytest.raises(SystemExit):
        main()
    items = json.loads(capsys.readouterr().out)
    assert len(items) == 39
    assert sum(item["trainings"] > 0 for item in items) >= 25, "entries with something to run"
    for item in items:
        assert item["data"] and item["title"] and item["status"]
        assert set(item["rows"]) == {"paper", "certified", "quoted"} and sum(item["rows"].values()) > 0
    by_name = {(item["paper"], item["entry"]): item for item in items}
    assert by_name["dp-lflow", "table-1"]["status"] == "data not available"
    assert "MNIST is not there" in by_name["dp-lflow", "table-1"]["remarks"]
    assert by_name["privae", "table-1"]["status"] == "ready"
    lflow = by_name["dp-lflow", "table-1"]
    assert lflow["trainings"] == 50 and lflow["rows"]["certified"] > 0 and lflow["rows"]["quoted"] > 0
    assert by_name["dp2-vae", "table-1"]["rows"]["paper"] == 1, "as published"
    assert "https://github.com/zalandoresearch/fashion-mnist" in lflow["homes"]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    for name in ("64-train", "64-test", "128-train", "128-test"):
        (tmp_path / "celeba").mkdir(exist_ok=True)
        (tmp_path / "celeba" / f"celeba-{name}.parquet").touch()
    locator = DatasetLocator.of([str(tmp_path)])
    status, remarks = state(find("dp-lflow", "figure-5")[1], locator)
    assert status == "data not available, a substitute is"
    assert remarks == ["CelebA-HQ, gender, 256×256 is not available; CelebA, gender, 128×128 replaces it"]
    status, remarks = state(find("dppm", "figure-3")[1], locator)
    assert status == "ready" and remarks == ["14,999 of CelebA's 182,637 training images"]

    def entry(**setting: str) -> Entry:
        one = Setting("x", **setting)  # type: ignore[arg-type]
        return Entry("e", "t", "sinkhorn", (Case("mnist", 1.0),), (one,))

    assert "no-such-method" not in METHODS
    assert state(entry(method="no-such-method"), locator) == (
        "method not available",
        ["no-such-method is not registered"],
    )
    assert state(entry(missing="not built"), locator) == ("cannot be run", ["not built"])


def test_a_result_of_which_no_number_counts_is_as_good_as_none() -> None:
    """The faces of the first split are neither shown nor counted."""
    current = load_results(DOCS / "results")["dp2-vae-table-1-full"]
    old = replace(current, rows=tuple(replace(row, superseded="another split") for row in current.rows))
    assert by_entry([old]) == {} and "39 entries; 0 run at full scale, 0 in part" in page(by_entry([old]))
    assert by_entry([current]) == {"dp2-vae table-1": current}


def test_what_is_computed_without_training_has_no_protocol_and_no_number_of_trainings() -> None:
    computed = load_results(DOCS / "results")["privae-table-1-full"]
    section = page(by_entry([computed])).split("### PRIVAE, table 1")[1]
    assert "protocol" not in section and "| – | – |" in section, "nothing is trained"


def test_a_figure_shows_ours_and_the_paper_s() -> None:
    paper = papers()["dp-lflow"]
    rows = []
    for place, epsilon in enumerate((1.0, 10.0, math.inf)):
        ours = ResultRow(
            setting="A",
            data=DataUsed("mnist", "as published"),
            protocol="sinkhorn",
            epsilon=epsilon,
            delta=1e-5,
            unit="image",
            method="dp-lflow",
            values={"CNN": Measured(70.0, 1.5, 2)},
            megabytes=1.0 + place,
        )
        rows.append(Compared(paper, Case("mnist", epsilon), Setting("A"), {"CNN": Value(80.0)}, ours))
    drawn = draw(rows, Figure("epsilon", "CNN"))
    assert drawn is not None and drawn.count("A, MNIST, paper") == 2 and "ε" in drawn
    sizes = draw(rows, Figure("megabytes", "CNN", "MB"))
    assert sizes is not None and "MNIST, ε ∞" in sizes
    assert standalone(drawn).startswith('<svg class="chart"') and "xmlns" in standalone(drawn)
    assert draw([], Figure("epsilon", "CNN")) is None


def test_a_duration_is_given_in_its_natural_unit() -> None:
    assert [duration(seconds) for seconds in (5, 600, 36_000, 864_000)] == ["5 s", "10 min", "10 h", "10 days"]


STORED = by_entry(list(load_results(DOCS / "results").values()))
ENTRIES = [f"{paper.key} {name}" for paper in papers().values() for name in paper.entries]


def test_an_entry_is_readable_at_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No line of a table is longer, every number stands whole on its line, and every table names its ε."""
    for name in ENTRIES:
        monkeypatch.setattr(console, "_width", 80)
        paper, entry = find(*name.split())
        nothing = ResultSet(name, entry.title, "full", Provenance("", "", {}, None), ())
        result = STORED.get(name, nothing)
        print_result(paper, entry, result)
        printed = capsys.readouterr().out.split("\n\n")
        tables = [text.splitlines() for text in printed if "\nsetting" in text]
        assert {f"{case.epsilon:g}".replace("inf", "∞") for case in entry.cases} == {
            table[0].rpartition("the paper's ε ")[2] for table in tables
        }
        shown = [line for table in tables for line in table]
        assert max(map(len, shown)) <= 80
        for line in lines(paper, entry, result):
            for cell in (line[3], line[4], line[6], line[7]):
                numbers = cell if cell[:1].isdigit() else ""
                assert any(numbers in own for own in shown), cell


def test_the_list_is_readable_at_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_width", 80)
    monkeypatch.setattr(sys, "argv", ["sfumato", "reproduce", "list", "--data", "nowhere"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 80
    for paper in papers().values():
        for name in paper.entries:
            assert any(line.startswith(f"{paper.key} {name} ") for line in printed), name


def test_every_entry_ran_at_the_small_scale_in_less_than_five_minutes_of_two_cores() -> None:
    """The measured seconds are process time with one job; two jobs share the trainings of an entry."""
    measured = costs()["measured"]
    assert set(measured) == {f"{paper.key} {entry}" for paper in papers().values() for entry in paper.entries}
    assert max(measured.values()) < 2 * 300
