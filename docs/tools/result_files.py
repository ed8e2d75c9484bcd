"""Checks of the result files, and of the tables that pages show of them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from evidence import without_commit
from finding import ROOT, Finding, failed_claim, line_of
from regions import MEASURED, REGION, Selector, documentation_pages, unsourced_numbers
from sfumato.evaluation.protocols import PROTOCOLS
from sfumato.experiments.results import Measured, ResultRow, ResultSet, load_results

FOLDER = ROOT / "docs" / "results"
OLDER = frozenset(
    [
        "audit-canaries",
        "audit-membership",
        "dp-diffusion-full",
        "dp-lflow-table-1-full",
        "dp-lflow-table-2-full",
        "dp2-vae-figure-8-full",
        "dp2-vae-table-1-full",
        "dp2-vae-table-2-full",
        "dpaf-table-14-full",
        "dppm-table-1-full",
        "expected-use-dp-merf-500",
        "transcribed-comparison",
        "transcribed-methods",
        "transcribed-real",
    ]
)
"""Made before the program recorded commits and logs. No other file may be without, and none is added here."""
OWN_REGION = re.compile(r"<!-- (expected use|table|case studies|measured)\b[^>]*-->.*?<!-- /\1 -->", re.DOTALL)
"""Rendered from result files of another format."""
WHOLE = ("reproduction.md",)
"""Pages that are rendered as a whole."""


def _complete(result: ResultSet) -> None:
    assert ResultSet.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert result.provenance.device and result.rows
    for row in result.rows:
        assert row.unit in ("image", "person", "record") and 0 < row.delta <= 1e-5 and row.data.split, row.setting
        assert row.values, row.setting
        folders = [value for value in row.parameters.values() if isinstance(value, str) and value.startswith("/")]
        assert not folders, folders
        # The published form of GS-WGAN has noise of its own, and "next to no noise" is a budget of its own.
        if row.spent is not None and row.epsilon is not None and row.variant != "published":
            assert "no noise" in row.setting or 0.9 * row.epsilon <= row.spent <= row.epsilon, row.setting
        for name, value in row.values.items():
            assert not value.values or Measured.of(value.values) == value, f"{row.setting}: {name}"
        if row.data.name.startswith("celeba") and result.provenance.commit is None:
            assert row.superseded, "the first split of the faces shared persons between training and test"


def _as_in_experiment(name: str, result: ResultSet) -> None:
    """An experiment that was changed after it was measured needs another name, or its result must go."""
    known = {
        key: table
        for path in (ROOT / "experiments").glob("*.toml")
        for key, table in tomllib.loads(path.read_text(encoding="utf-8")).items()
    }
    table = known.get(name)
    for row in result.rows if table else ():
        _row_as_in(table or {}, row)


def _row_as_in(table: dict[str, object], row: ResultRow) -> None:
    assert row.epsilon in (*table.get("epsilon", ()), None) and row.data.name in table["data"], row.setting  # type: ignore[misc,operator]
    assert row.unit == table.get("unit", "image"), row.setting
    assert row.protocol in (table.get("protocols") or ["sinkhorn"]), row.setting  # type: ignore[operator]
    assert row.images == table.get("images", row.images) and row.trainings <= table.get("trainings", 1), row.setting  # type: ignore[operator]
    for key, value in table.get("parameters", {}).items():  # type: ignore[attr-defined]
        assert row.parameters[key] == value, (row.setting, key)


def contents() -> Iterator[Finding]:
    """Result files that are incomplete, contradict themselves or their experiment, or do not say how they were made."""
    results = load_results(FOLDER)
    for name, result in results.items():
        yield from failed_claim(FOLDER / f"{name}.json", lambda result=result: _complete(result))
        yield from failed_claim(
            FOLDER / f"{name}.json", lambda name=name, result=result: _as_in_experiment(name, result)
        )
        made = result.provenance
        logs = made.command.startswith("python ") or all(row.log_sha256 for row in result.rows)
        if name not in OLDER and (made.commit is None or not logs):
            yield Finding(
                FOLDER / f"{name}.json", 1, "it names no commit or no log: run it again from a clean checkout"
            )
    for one in without_commit(FOLDER, results):
        if one.name not in OLDER:
            yield Finding(FOLDER / f"{one.name}.json", 1, one.reason)


def _said_around(selector: Selector, outside: str, results: dict[str, ResultSet]) -> Iterator[str]:
    """A table shows ε, unit and trainings; the page around it has to say the rest."""
    rows = [row for name in selector.files for row in results[name].rows if selector.accepts(row)]
    for protocol in sorted({row.protocol.partition(",")[0] for row in rows} & set(PROTOCOLS)):
        counts = {row.images for row in rows if row.protocol.partition(",")[0] == protocol}
        if len(counts) > 1:
            yield f"one table mixes {counts} synthetic images under {protocol}"
        paper = f"{PROTOCOLS[protocol].papers.partition(',')[0]} paper"
        if f"`{protocol}`" not in outside and paper not in " ".join(outside.split()):
            yield f"the page names neither the {paper} nor the protocol `{protocol}` of this table"
        for count in counts - {None}:
            if f"{count:,}" not in outside:
                yield f"the page does not say that this table is of {count:,} images"
    for delta in sorted({row.delta for row in rows if row.epsilon is not None}):
        if f"δ = {delta:g}".replace("e-0", "e-") not in outside:
            yield f"the page does not state δ = {delta:g} of this table"


def typed_cells(page: str) -> list[str]:
    """Cells of tables that are not rendered and hold a number."""
    outside = OWN_REGION.sub("", REGION.sub("", page))
    cells = [cell for line in outside.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]
    return [cell for cell in cells if re.fullmatch(r"[\s*~≥≤–-]*\d[\d.,]*( ?[%×s]| ?± ?[\d.]+)?[\s*~]*", cell)]


def tables() -> Iterator[Finding]:
    """Tables whose page does not say what they are of, and measured numbers that are typed by hand."""
    results = load_results(FOLDER)
    for path in documentation_pages(ROOT):
        text = path.read_text(encoding="utf-8")
        outside = REGION.sub("", text)
        for region in REGION.finditer(text):
            for words in _said_around(Selector.parse(region["selector"]), outside, results):
                yield Finding(path, line_of(text, region.start()), words)
        if path.name not in WHOLE:
            yield from _typed(path, text)


def _typed(path: Path, text: str) -> Iterator[Finding]:
    for number in unsourced_numbers(OWN_REGION.sub("", text)):
        place = next(found.start() for found in MEASURED.finditer(text) if found.group() == number)
        yield Finding(path, line_of(text, place), f"{number} is typed: render it from a result file")
    if "reference" not in path.parts:
        for cell in typed_cells(text):
            # Outside of results a bound or a constant may be a digit.
            if "results" in path.parts or len(cell.strip()) > 1:
                yield Finding(
                    path, line_of(text, f"|{cell}|"), f"{cell.strip()} is typed: render the table from a result file"
                )
