"""Cards, ledgers and transcripts are what their JSON schemas say, those of version 0.2.0 included."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from verifier_cases.releases import made

ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "fixtures" / "0.2.0"


def schema(name: str) -> jsonschema.Draft202012Validator:
    found = json.loads((ROOT / "docs" / "reference" / "schemas" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "case",
    [
        "lineage elsewhere",
        "second run on the ledger",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("gs-wgan certified", "tuned")),
    ],
)
def test_what_is_written_fits(tmp_path: Path, case: str) -> None:
    folder = made(case, tmp_path / "run")
    card = json.loads((folder / "release" / "card.json").read_text())
    schema("card").validate(card)
    for name in ("ledger", "transcript"):
        for line in lines(folder / f"{name}.jsonl"):
            schema(name).validate(line)
    for change in ({"diary": 1}, {"epsilon": "1"}, {"unit": "cat"}, {"ledger_head": {"length": 0, "hash": ""}}):
        assert not schema("card").is_valid({**copy.deepcopy(card), **change})


def test_what_0_2_0_wrote_fits() -> None:
    for name in ("first", "measured"):
        schema("card").validate(json.loads((OLD / name / "card.json").read_text()))
    for line in lines(OLD / "ledger.jsonl"):
        schema("ledger").validate(line)


def test_a_transcript_holds_no_key() -> None:
    key = {"kind": "key", "key": "0" * 64, "hash": "0" * 64}
    assert schema("ledger").is_valid(key) and not schema("transcript").is_valid(key)
