"""The page of findings names tests that exist, for every finding."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "advisory.md"
FINDINGS = 12


def test_every_finding_names_tests_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8").split("## The findings and the tests")[1]
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`tests/" in line]
    assert len(rows) == FINDINGS
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (
                f"{file}::{name}"
            )
