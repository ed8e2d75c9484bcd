"""Draw random defects over ``privacy/`` by simple operators, and report which of them the tests of ``privacy`` catch.

``python mutants/operators.py --count 200 --seed 0 --out docs/results/mutants-random.json``. A drawn defect is one
changed token: a comparison, an arithmetic operator, a number, a boolean or a deleted statement. For each the tests of
``tests/privacy`` that execute the changed line run first, then others that execute its file, the quickest first and up
to ``--seconds`` of them; ``--hours`` ends the pass early. A defect that survives is listed with its line and with the
explanation that ``mutants/survivors.toml`` gives.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from run import ROOT, copied
from selection import Coverage, forked_tests, preload

_COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
_OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
_SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}

Change = tuple[int, int, int, str]


def candidates(text: str) -> Iterator[Change]:
    """``(line, start, stop, replacement)`` of every single-line change that the operators allow."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
            yield from _between(lines, node.left, _SYMBOLS[type(node.ops[0])], _COMPARISONS[type(node.ops[0])])
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            yield from _between(lines, node.left, _SIGNS[type(node.op)], _OPERATORS[type(node.op)])
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node.lineno, node.col_offset, node.end_col_offset or 0, str(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            yield node.lineno, node.col_offset, node.end_col_offset or 0, repr(node.value + 1)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and node.lineno == node.end_lineno:
            yield node.lineno, node.col_offset, node.end_col_offset or 0, "pass"


def _between(lines: list[str], left: ast.expr, symbol: str, new: str) -> Iterator[Change]:
    """The operator that follows its left operand on the same line."""
    line, start = left.end_lineno or 0, left.end_col_offset or 0
    encoded = lines[line - 1].encode()
    found = encoded.find(symbol.encode(), start)
    if 0 <= found <= start + 3:
        yield line, found, found + len(symbol.encode()), new


def apply(text: str, change: Change) -> str:
    """The text with one change; columns count bytes, as the parser does."""
    line, start, stop, new = change
    lines = text.splitlines(keepends=True)
    encoded = lines[line - 1].encode()
    lines[line - 1] = (encoded[:start] + new.encode() + encoded[stop:]).decode()
    return "".join(lines)


def explanations() -> dict[tuple[str, str, str], str]:
    """Why each known survivor changes nothing that a test could see, by file, changed line and replacement."""
    text = (ROOT / "mutants" / "survivors.toml").read_text(encoding="utf-8")
    return {(one["file"], one["text"], one["new"]): one["why"] for one in tomllib.loads(text).get("survivor", [])}


def report(possible: int, drawn: int, results: list[dict[str, object]]) -> str:
    """The result file: how many were drawn, run and caught, and what became of each."""
    caught = sum(bool(result["caught"]) for result in results)
    found = {"possible": possible, "drawn": drawn, "run": len(results), "caught": caught, "mutants": results}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Draw, run and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="Nominal seconds of tests for one defect.")
    parser.add_argument("--hours", type=float, default=24.0, help="Stop after this time.")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    folder = ROOT / "src" / "sfumato" / "privacy"
    every = [
        (path.relative_to(ROOT).as_posix(), change)
        for path in sorted(folder.rglob("*.py"))
        for change in candidates(path.read_text(encoding="utf-8"))
    ]
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    known, results = explanations(), []
    end = time.monotonic() + 3600 * options.hours
    with tempfile.TemporaryDirectory() as temporary:
        copy = copied(Path(temporary))
        preload()
        coverage = Coverage.measured(copy, copy / "tests" / "privacy")
        for name, change in drawn:
            if time.monotonic() > end:
                break
            target = copy / name
            original = target.read_text(encoding="utf-8")
            line = original.splitlines()[change[0] - 1].strip()
            target.write_text(apply(original, change), encoding="utf-8")
            tests = coverage.tests(target, change[0], seconds=options.seconds)
            caught = forked_tests(copy, tests, seconds=5 * options.seconds + 60) != 0
            target.write_text(original, encoding="utf-8")
            result = {"file": name, "line": change[0], "text": line, "new": change[3], "caught": caught}
            if not caught:
                result["why"] = known.get((name, line, change[3]), "not explained")
            results.append(result)
            print(f"{'caught' if caught else 'SURVIVES'}: {name}:{change[0]}: {line} -> {change[3]}", flush=True)
            options.out.write_text(report(len(every), len(drawn), results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
