"""What ``make check`` reports: a planted mistake of every kind is found at its line."""

from __future__ import annotations

import ast
import importlib
import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import pages
import sentences
import source_tree
from evidence import _code, changed_since, dependencies, stale_results
from finding import ROOT, Finding, failed_claim
from regions import DAGGER, REGION, TRANSCRIBED, Selector, region_table, rendered, unsourced_numbers
from result_files import typed_cells
from sfumato.experiments.entries import papers
from sfumato.experiments.results import ResultSet, load_results
from sources import sources

RESULTS = load_results(ROOT / "docs" / "results")


def test_a_finding_names_file_and_line() -> None:
    def claim() -> None:
        raise ValueError("one too many")

    [found] = failed_claim(ROOT / "README.md", claim)
    assert str(found) == 'README.md:1: claim: raise ValueError("one too many") one too many'
    assert str(Finding(Path("/elsewhere/a.md"), 3, "b")) == "/elsewhere/a.md:3: b"


def test_an_import_from_a_higher_layer_is_found() -> None:
    source = ast.parse("import numpy\nfrom sfumato.files import new_file\nfrom sfumato.cli.main import app\n")
    assert {line for line, _ in source_tree.upward("data/reader.py", source)} == {3}
    assert not list(source_tree.upward("cli/inspect.py", source))


def test_an_assertion_that_cannot_fail_is_found() -> None:
    for source in [
        "assert True",
        "assert (found, 'a message')",
        "assert found or True",
        "assert found.mean == found.mean",
        "assert 0 <= found <= found",
        "def test_nothing():\n    '''It says much.'''\n    pass\n",
    ]:
        assert [line for line, _ in source_tree.faults(source)] == [1]
        assert not list(source_tree.faults("def test_it():\n    assert found == expected(found)\n"))


def test_a_dead_link_a_dead_anchor_and_a_misspelt_word_are_found() -> None:
    text = "# Title\n\n```sh\n[no](no.md)\n```\n[yes](index.md), [here](#title)\n[no](no.md)\n[no](index.md#no)\n"
    assert [line for line, _ in pages.dead_links(ROOT / "docs" / "README.md", text)] == [7, 8]
    assert pages.misspelt(["-"], "reci" + "eve") and not pages.misspelt(["-"], "receive")


def test_a_printed_command_that_names_what_does_not_exist_is_found() -> None:
    for words in [
        "trainn DATA",
        "train DATA --epsilom 3",
        "experiment run experiments/faces.toml --only dppm-face --out OUT",
        "reproduce dppm table-9 --data DATA",
        "plan dppm --epsilon 10 --set patch=8",
    ]:
        assert pages.wrong_in(words.split())
        assert not pages.wrong_in(["plan", "dppm", "--epsilon", "10", "--set", "steps=8"])


def test_a_changed_digit_of_a_page_or_of_a_file_is_found() -> None:
    """In every table of the documentation, and the first digit of each."""
    for path in sentences.documentation_pages(ROOT):
        text = path.read_text(encoding="utf-8")
        for region in REGION.finditer(text):
            place = region.start("body") + next(i for i, one in enumerate(region["body"]) if one.isdecimal())
            changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
            assert rendered(changed, RESULTS) == text, "the digit is written again from the files"
            assert [line for line, _ in pages.differences(changed, text)] == [text.count("\n", 0, place) + 1]
            selector = Selector.parse(region["selector"])
            contents = {name: RESULTS[name].to_json() for name in selector.files}
            for value in (one for own in contents.values() for row in own["rows"] for one in row["values"].values()):
                value["mean"] += 11.0
            other = {**RESULTS, **{name: ResultSet.from_json(content) for name, content in contents.items()}}
            assert region_table(selector, other) != region["body"]


def test_a_typed_number_is_found() -> None:
    assert unsourced_numbers("It has 89.2 ± .4, and 7 % of the rest.") == ["2 ± .4", "7 %"]
    cells = [" 58.2 ", " **3.47** ", " 97.6 ± 0.1 "]
    assert typed_cells("| a | 58.2 |\n|---|---|\n| b | **3.47** |\n| c | 97.6 ± 0.1 |\n") == cells
    assert sentences.with_unit("It takes 7 seconds, `in 8 seconds`,\nor 1.2 GB.", []) == ["7 seconds", "1.2 GB"]
    assert sentences.with_unit("It is 2.1 points lower.", ["is 2.1 points lower"]) == []


def test_a_region_that_selects_nothing_or_too_much_is_an_error() -> None:
    with pytest.raises(LookupError, match="did you mean 'dp-lflow-table-1-full'"):
        region_table(Selector.parse("dp-lflow-table-1-ful"), RESULTS)
    with pytest.raises(LookupError, match="no row"):
        region_table(Selector.parse("dp-lflow-table-1-full data=nothing"), RESULTS)
    with pytest.raises(ValueError, match="has no 'dat'"):
        Selector.parse("dp-lflow-table-1-full dat=mnist")
    with pytest.raises(ValueError, match="two rows"):
        region_table(Selector.parse("dp-lflow-table-1-full dp-lflow-table-1-full layout=pivot measures=CNN"), RESULTS)


def test_seconds_and_arithmetic_are_shown_beside_the_numbers() -> None:
    result = RESULTS["dp-diffusion-cpu"]
    rows = tuple(replace(row, seconds=61.4, processor_seconds=None, arithmetic="bfloat16") for row in result.rows)
    table = region_table(
        Selector.parse('cpu measures="CNN;seconds;processor seconds"'), {"cpu": replace(result, rows=rows)}
    )
    assert table.splitlines()[2].endswith("| 61 | – |") and "trained in bfloat16" in table


def test_transcribed_numbers_have_a_dagger_and_the_paper_s_can_stand_below() -> None:
    name = "dp-lflow-table-1-full"
    words = f"{name} layout=pivot paper=beside measures=CNN epsilon=10 setting=DP-LFlow data=mnist"
    made = replace(RESULTS[name].provenance, commit=None)
    old = replace(RESULTS[name], provenance=made, rows=tuple(replace(r, log_sha256=None) for r in RESULTS[name].rows))
    text = region_table(Selector.parse(words), {name: old})
    assert old.transcribed and text.startswith("| CNN † |") and text.count(DAGGER) == 1 and TRANSCRIBED in text
    new = replace(old, provenance=replace(old.provenance, commit="0123456789ab"))
    text = region_table(Selector.parse(words), {name: new})
    assert DAGGER not in text and TRANSCRIBED not in text
    paper = papers()["dp-lflow"].entries["table-1"]
    [own] = [setting for setting in paper.settings if setting.name == "DP-LFlow"]
    printed = own.paper["CNN"][[case.data for case in paper.cases].index("mnist")]
    assert printed is not None and f"| DP-LFlow: what the paper prints | {printed.mean:.1f} |" in text


def test_a_result_is_old_if_the_code_behind_its_numbers_changed() -> None:
    found = {one.name: one.reason for one in stale_results({name: RESULTS[name] for name in ("dp2-vae-table-1-full",)})}
    assert found == {"dp2-vae-table-1-full": "the commit was not recorded"}
    files = dependencies(RESULTS["predicted-dp-merf-3000"])
    assert {"methods/dp_merf.py", "data/reader.py"} <= {*files}
    assert not {"methods/dpaf.py", "privacy/ledger.py", "cli/main.py"} & {*files}
    assert changed_since("HEAD", files) == []
    before = 'def f(x):\n    """Old."""\n    return x + 1\n'
    assert _code(before) == _code('def f(x):\n    """New."""\n    # Because.\n    return x + 1\n')
    assert _code(before) != _code("def f(x):\n    return x + 2\n")


def test_places_with_numbers_are_listed_with_their_files(tmp_path: Path) -> None:
    found = sources(ROOT, RESULTS)
    assert len(found) > 15
    (tmp_path / "README.md").write_text("# A\n\nIt is right about 91.5 % of them.\n")
    assert [(one.page, one.line, one.files) for one in sources(tmp_path, RESULTS)] == [("README.md", 3, ())]


def test_the_result_of_planted_defects_names_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "mutants"))
    module = importlib.import_module("run")
    monkeypatch.setattr(module, "copied", lambda folder: folder)
    monkeypatch.setattr(module, "result_of", lambda mutant, copy: "caught")
    only = tomllib.loads((ROOT / "mutants" / "chosen.toml").read_text(encoding="utf-8"))["mutant"][0]["defect"]
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", only, "--out", str(tmp_path / "found.json")])
    assert module.main() == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["commit"] == module.current_commit() and found["command"] == f"python mutants/run.py --only '{only}'"
    assert found["chosen"] == found["caught"] == len(found["mutants"]) >= 1
