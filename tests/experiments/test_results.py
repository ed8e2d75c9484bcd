"""Results are data: they survive a round trip, units are never pooled, and pages print what the files hold."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sfumato.cli.experiment import _without_paths
from sfumato.evaluation.protocols import PROTOCOLS
from sfumato.experiments.evidence import _code, changed_since, dependencies, stale_results, without_commit
from sfumato.experiments.papers.entries import papers
from sfumato.experiments.papers.result import compared
from sfumato.experiments.results import Measured, ResultSet, load_results
from sfumato.report.papers import agreement
from sfumato.report.regions import (
    DAGGER,
    REGION,
    TRANSCRIBED,
    Selector,
    documentation_pages,
    region_table,
    rendered,
    unsourced_numbers,
)
from sfumato.report.sources import sources

ROOT = Path(__file__).parents[2]
RESULTS = load_results(ROOT / "docs" / "results")
OWN_REGION = re.compile(r"<!-- (expected use|table|case studies|measured)\b[^>]*-->.*?<!-- /\1 -->", re.DOTALL)
"""Rendered from result files of another format, and compared by tests of their own."""


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_file_is_complete(name: str) -> None:
    result = RESULTS[name]
    assert ResultSet.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert result.provenance.device and result.rows
    for row in result.rows:
        assert row.unit in ("image", "person", "record") and 0 < row.delta <= 1e-5 and row.data.split
        assert row.values, row.setting
        # The published form of GS-WGAN has noise of its own, and "next to no noise" is a budget of its own.
        if None not in (row.spent, row.epsilon) and row.variant != "published" and "no noise" not in row.setting:
            assert 0.9 * row.epsilon <= row.spent <= row.epsilon, row.setting  # type: ignore[operator]
        for value in row.values.values():
            assert not value.values or Measured.of(value.values) == value, "mean and deviation follow from the values"
        if row.data.name.startswith("celeba") and result.provenance.commit is None:
            assert row.superseded, "the first split of the faces shared persons between training and test"


OLDER = frozenset(
    [
        "audit-canaries",
        "audit-membership",
        "dp-diffusion-digits",
        "dp-diffusion-full",
        "dp-lflow-figure-6-full",
        "dp-lflow-table-1-full",
        "dp-lflow-table-2-full",
        "dp-lflow-table-3-full",
        "dp-lflow-table-4-full",
        "dp2-vae-figure-5-full",
        "dp2-vae-figure-8-full",
        "dp2-vae-figure-9-full",
        "dp2-vae-table-1-full",
        "dp2-vae-table-2-full",
        "dpaf-table-1-full",
        "dpaf-table-14-full",
        "dpaf-table-2-full",
        "dppm-figure-3-full",
        "dppm-table-1-full",
        "dppm-table-2-full",
        "engine-exactness-h200",
        "expected-use-dp-merf-500",
        "newcomer",
        "privae-figure-1-full",
        "transcribed-comparison",
        "transcribed-methods",
        "transcribed-privae-codes",
        "transcribed-privae-pinwheel",
        "transcribed-real",
        "transcribed-small",
    ]
)
"""Made before the program recorded commits and logs. No other file may be without, and none is added here."""


def test_every_result_names_its_commit_and_its_log() -> None:
    incomplete = {
        name
        for name, result in RESULTS.items()
        if result.provenance.commit is None
        or not (result.provenance.command.startswith("python ") or all(row.log_sha256 for row in result.rows))
    }
    # A script writes what it measures into the file itself; only the program has logs beside it.
    incomplete |= {one.name for one in without_commit(ROOT / "docs" / "results", RESULTS)}
    assert incomplete <= OLDER, "run it again from a clean checkout, by the command that writes result files"


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_names_no_folder_of_a_machine(name: str) -> None:
    for row in RESULTS[name].rows:
        assert not [value for value in row.parameters.values() if isinstance(value, str) and value.startswith("/")]


EXPERIMENTS = {
    name: table
    for path in sorted((ROOT / "experiments").glob("*.toml"))
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items()
}


@pytest.mark.parametrize("name", [name for name in RESULTS if name in EXPERIMENTS])
def test_a_result_has_the_settings_of_its_experiment(name: str) -> None:
    """An experiment that was changed after it was measured needs another name, or its result must go."""
    table = EXPERIMENTS[name]
    for row in RESULTS[name].rows:
        assert row.epsilon in (*table.get("epsilon", ()), None) and row.data.name in table["data"]
        assert row.unit == table.get("unit", "image") and row.protocol in table.get("protocols", ["sinkhorn"])
        assert row.images == table.get("images", row.images) and row.trainings <= table.get("trainings", 1)
        for key, value in table.get("parameters", {}).items():
            assert row.parameters[key] == value, (row.setting, key)


def test_persons_and_images_are_never_pooled() -> None:
    """In the first edition one person-level and one image-level training were averaged to 61.3 ± 4.6."""
    paper = papers()["dp-lflow"]
    rows = compared(paper, paper.entries["table-2"], RESULTS["dp-lflow-table-2-full"].rows)
    faces = [row.ours for row in rows if row.setting.name == "DP-LFlow" and row.case.data == "celeba-gender-32"]
    assert [(row.unit, round(row.values["CNN"].mean, 1)) for row in faces if row] == [("image", 64.5), ("person", 58.1)]
    text = (ROOT / "docs" / "results" / "reproduction.md").read_text()
    assert "61.3 ± 4.6" not in text


@pytest.mark.parametrize("path", documentation_pages(ROOT), ids=lambda path: path.stem)
def test_a_page_prints_what_the_files_hold(path: Path) -> None:
    """Written by: sfumato experiment render"""
    text = path.read_text(encoding="utf-8")
    assert rendered(text, RESULTS) == text


def test_a_changed_digit_is_noticed() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    [region] = REGION.finditer(text)
    changed = text.replace("96.1 ± 0.1", "97.1 ± 0.1", 1)
    assert changed != text and rendered(changed, RESULTS) == text
    content = RESULTS["dp2-vae-table-1-full"].to_json()
    content["rows"][0]["values"]["CNN"]["mean"] += 1
    other = {**RESULTS, "dp2-vae-table-1-full": ResultSet.from_json(content)}
    assert region_table(Selector.parse(region["selector"]), other) != region["body"]


REGIONS = [
    (path, region) for path in documentation_pages(ROOT) for region in REGION.finditer(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("path", "region"), REGIONS, ids=[path.stem for path, _ in REGIONS])
def test_any_changed_digit_of_a_rendered_table_is_noticed(path: Path, region: re.Match[str]) -> None:
    text, random = path.read_text(encoding="utf-8"), np.random.default_rng(region.start())
    places = [place for place in range(*region.span("body")) if text[place].isdecimal()]
    for place in random.choice(places, size=min(5, len(places)), replace=False):
        changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        assert rendered(changed, RESULTS) == text, "the digit is written again from the files"


@pytest.mark.parametrize(("path", "region"), REGIONS, ids=[path.stem for path, _ in REGIONS])
def test_a_changed_value_of_a_file_changes_the_table(path: Path, region: re.Match[str]) -> None:
    selector = Selector.parse(region["selector"])
    contents = {name: RESULTS[name].to_json() for name in selector.files}
    for content in contents.values():
        for row in content["rows"]:
            for value in row["values"].values():
                value["mean"] += 11.0
    other = {**RESULTS, **{name: ResultSet.from_json(content) for name, content in contents.items()}}
    assert region_table(selector, other) != region["body"]


@pytest.mark.parametrize(("path", "region"), REGIONS, ids=[path.stem for path, _ in REGIONS])
def test_a_page_states_protocol_delta_and_number_of_images_of_its_tables(path: Path, region: re.Match[str]) -> None:
    """A table shows ε, unit and trainings; the text around it says the rest, and the files agree with it."""
    selector, outside = Selector.parse(region["selector"]), REGION.sub("", path.read_text(encoding="utf-8"))
    rows = [row for name in selector.files for row in RESULTS[name].rows if selector.accepts(row)]
    named = [(row.protocol.partition(",")[0], row.images) for row in rows]
    for protocol in {protocol for protocol, _ in named} & set(PROTOCOLS):
        counts = {images for own, images in named if own == protocol}
        assert len(counts) == 1, f"one table mixes {counts} synthetic images under {protocol}"
        assert f"`{protocol}`" in outside
        [count] = counts
        assert count is None or f"{count:,}" in outside, count
    for delta in {row.delta for row in rows if row.epsilon is not None}:
        assert f"δ = {delta:g}".replace("e-0", "e-") in outside, delta


WHOLE = [ROOT / "docs" / "results" / name for name in ("reproduction.md", "web.md")]
PAGES = [path for path in documentation_pages(ROOT) if path not in WHOLE]
"""Those two are rendered as a whole, and compared by the tests of the catalogue and of the local page."""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_measured_number_has_a_source(path: Path) -> None:
    """A number with a deviation or a percent sign is rendered from a result file."""
    assert not unsourced_numbers(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [path for path in PAGES if "reference" not in path.parts], ids=lambda path: path.stem)
def test_tables_of_results_are_rendered(path: Path) -> None:
    """No cell of a table that is typed by hand is a number; outside of results a bound or a constant may be a digit."""
    found = typed_cells(path.read_text(encoding="utf-8"))
    assert not [cell for cell in found if "results" in path.parts or len(cell.strip()) > 1]


def typed_cells(page: str) -> list[str]:
    outside = OWN_REGION.sub("", REGION.sub("", page))
    cells = [cell for line in outside.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]
    return [cell for cell in cells if re.fullmatch(r"[\s*~≥≤–-]*\d[\d.,]*( ?[%×s]| ?± ?[\d.]+)?[\s*~]*", cell)]


def test_a_typed_number_is_found() -> None:
    assert unsourced_numbers("It has 89.2 ± .4, and 7 % of the rest.") == ["2 ± .4", "7 %"]
    assert typed_cells("| a | 58.2 |\n|---|---|\n| b | **3.47** |\n| c | 97.6 ± 0.1 |\n") == [
        " 58.2 ",
        " **3.47** ",
        " 97.6 ± 0.1 ",
    ]


def test_a_region_that_selects_nothing_or_too_much_is_an_error() -> None:
    with pytest.raises(LookupError, match="did you mean 'dp-lflow-table-1-full'"):
        region_table(Selector.parse("dp-lflow-table-1-ful"), RESULTS)
    with pytest.raises(LookupError, match="no row"):
        region_table(Selector.parse("dp-lflow-table-1-full data=nothing"), RESULTS)
    with pytest.raises(ValueError, match="has no 'dat'"):
        Selector.parse("dp-lflow-table-1-full dat=mnist")
    with pytest.raises(ValueError, match="two rows"):
        region_table(Selector.parse("dp-lflow-table-1-full dp-lflow-table-1-full layout=pivot measures=CNN"), RESULTS)


def test_the_time_of_a_training_is_shown_where_a_region_asks_for_it() -> None:
    result = RESULTS["dp-diffusion-cpu"]
    rows = tuple(replace(row, seconds=61.4, processor_seconds=118.7) for row in result.rows)
    selector = Selector.parse('cpu measures="CNN;seconds;processor seconds"')
    assert region_table(selector, {"cpu": replace(result, rows=rows)}).splitlines()[-1].endswith("| 61 | 119 |")
    older = tuple(replace(row, processor_seconds=None) for row in rows)
    assert region_table(selector, {"cpu": replace(result, rows=older)}).splitlines()[-1].endswith("| 61 | – |")
    assert "seconds" not in region_table(Selector.parse("dp-diffusion-cpu"), RESULTS)


def test_transcribed_numbers_have_a_dagger() -> None:
    name = "dp-lflow-table-1-full"
    selector = Selector.parse(f"{name} layout=pivot measures=CNN setting=DP-LFlow")
    made = replace(RESULTS[name].provenance, commit=None)
    old = replace(RESULTS[name], provenance=made, rows=tuple(replace(r, log_sha256=None) for r in RESULTS[name].rows))
    assert old.transcribed
    text = region_table(selector, {name: old})
    assert text.startswith("| CNN † |") and text.count(DAGGER) == 1 and TRANSCRIBED in text
    new = replace(old, provenance=replace(old.provenance, commit="0123456789ab"))
    text = region_table(selector, {**RESULTS, name: new})
    assert DAGGER not in text and TRANSCRIBED not in text
    both = {
        "old": old,
        "new": replace(new, rows=tuple(replace(row, setting="new") for row in new.rows if row.setting == "DP-LFlow")),
    }
    for layout in ("layout=pivot measures=CNN", "measures=CNN"):
        lines = region_table(Selector.parse(f'old new {layout} setting="DP-LFlow;new"'), both).splitlines()
        assert all((DAGGER in line) == ("DP-LFlow" in line) for line in lines if line.startswith("|"))


def test_what_the_paper_prints_can_stand_below_ours() -> None:
    text = region_table(
        Selector.parse(
            "dp-lflow-table-1-full layout=pivot paper=beside measures=CNN epsilon=10 setting=DP-LFlow data=mnist"
        ),
        RESULTS,
    )
    paper = papers()["dp-lflow"].entries["table-1"]
    [own] = [setting for setting in paper.settings if setting.name == "DP-LFlow"]
    printed = own.paper["CNN"][[case.data for case in paper.cases].index("mnist")]
    assert printed is not None and f"| DP-LFlow: what the paper prints | {printed.mean:.1f} |" in text


def test_results_without_a_commit_are_listed_as_old() -> None:
    found = {one.name: one.reason for one in stale_results(RESULTS)}
    assert found["dp2-vae-table-1-full"] == "the commit was not recorded"
    assert "superseded" in found["dpaf-table-14-full"]


def test_a_result_depends_on_the_code_behind_its_numbers_alone() -> None:
    merf, faces = (dependencies(RESULTS[name]) for name in ("predicted-dp-merf-3000", "dpaf-table-2-full"))
    assert {"methods/dp_merf.py", "networks/generators.py", "privacy/step.py", "evaluation/classifiers.py"} <= {*merf}
    assert {"data/reader.py", "data/formats/arrays.py"} <= {*merf} and "data/formats/tables.py" in faces
    absent = {"methods/dpaf.py", "networks/flows.py", "training/profiling.py", "privacy/ledger.py", "cli/main.py"}
    assert not absent & {*merf} and "methods/dpaf.py" in faces
    assert not any("evaluation" in name for name in dependencies(RESULTS["privae-table-1-full"])), "it is computed"


def test_comments_and_docstrings_change_no_number() -> None:
    before = 'def f(x):\n    """Old."""\n    return x + 1\n'
    assert _code(before) == _code('def f(x):\n    """New."""\n    # Because.\n    return x + 1\n')
    assert _code(before) != _code("def f(x):\n    return x + 2\n")


def test_nothing_changed_since_now() -> None:
    assert changed_since("HEAD", dependencies(RESULTS["predicted-dp-merf-3000"])) == []


def test_every_place_with_numbers_has_files(tmp_path: Path) -> None:
    found = sources(ROOT, RESULTS)
    assert len(found) > 30
    for one in found:
        assert one.files, f"{one.page}:{one.line}"
        assert all((ROOT / "docs" / "results" / f"{name}.json").is_file() for name in one.files), one
    (tmp_path / "README.md").write_text("# A\n\nIt is right about 91.5 % of them.\n")
    assert [(one.page, one.line, one.files) for one in sources(tmp_path, RESULTS)] == [("README.md", 3, ())]


def test_a_recorded_command_names_files_of_the_repository_from_its_root(tmp_path: Path) -> None:
    words = [
        "run",
        str(ROOT / "experiments" / "small.toml"),
        "--data",
        f"mnist={tmp_path}/mnist",
        "--out",
        str(tmp_path),
    ]
    shown = ["run", "experiments/small.toml", "--data", "mnist=mnist", "--out", tmp_path.name]
    assert _without_paths(words) == shown


def test_a_number_of_the_paper_is_counted_once() -> None:
    """It stands beside each of our forms of the method."""
    paper = papers()["dp2-vae"]
    stored = RESULTS["dp2-vae-table-1-full"]
    own = replace(stored, rows=tuple(row for row in stored.rows if row.setting.startswith("DP²-VAE")))
    assert "paper's 8 numbers" in agreement(paper, paper.entries["table-1"], own)
