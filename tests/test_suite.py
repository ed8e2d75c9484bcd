"""The tests themselves: none is written so that it cannot fail."""

from __future__ import annotations

import ast
import importlib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
FILES = sorted(ROOT.rglob("test_*.py"))
MUTANTS = tomllib.loads((ROOT.parent / "mutants" / "chosen.toml").read_text(encoding="utf-8"))["mutant"]


def faults(source: str) -> Iterator[str]:
    """Assertions of constants, of a thing compared with itself, and alternatives that always hold."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assert):
            continue
        words = f"line {node.lineno}: {ast.unparse(node.test)}"
        parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        if any(isinstance(part, ast.Constant | ast.Tuple | ast.JoinedStr) for part in parts):
            yield words
        for part in ast.walk(node.test):
            if isinstance(part, ast.Compare):
                sides = [ast.unparse(side) for side in (part.left, *part.comparators)]
                calls = any(isinstance(side, ast.Call) for side in ast.walk(part))
                if len(set(sides)) < len(sides) and not calls:
                    yield words


def empty_tests(source: str) -> Iterator[str]:
    """Tests with a body that does nothing."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            body = [one for one in node.body if not isinstance(one, ast.Pass)]
            if not [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]:
                yield f"line {node.lineno}: {node.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_assertion_can_fail(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert [*faults(source), *empty_tests(source)] == []


@pytest.mark.parametrize(
    "source",
    [
        "assert True",
        "assert (found, 'a message')",
        "assert found or True",
        "assert found.mean == found.mean",
        "assert 0 <= found <= found",
    ],
)
def test_a_fault_is_found(source: str) -> None:
    assert list(faults(source))
    assert list(empty_tests("def test_nothing():\n    '''It says much.'''\n    pass\n"))


def test_the_result_of_planted_defects_names_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT.parent / "mutants"))
    module = importlib.import_module("run")
    monkeypatch.setattr(module, "copied", lambda folder: folder)
    monkeypatch.setattr(module, "result_of", lambda mutant, copy: "caught")
    only = MUTANTS[0]["defect"]
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", only, "--out", str(tmp_path / "found.json")])
    assert module.main() == 0
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["commit"] == module.current_commit() and found["command"] == f"python mutants/run.py --only '{only}'"
    assert found["chosen"] == found["caught"] == len(found["mutants"]) >= 1


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant["defect"])
def test_a_planted_defect_applies_and_its_test_exists(mutant: dict[str, str]) -> None:
    source = (ROOT.parent / "src" / "sfumato" / mutant["file"]).read_text(encoding="utf-8")
    assert source.count(mutant["old"]) == 1 and mutant["old"] != mutant["new"]
    file, _, name = mutant["test"].partition("::")
    functions = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    assert name.partition("[")[0] in {one.name for one in functions if isinstance(one, ast.FunctionDef)}
