"""Draw random defects over ``privacy/`` by simple operators, and report which of them the tests of ``privacy`` catch.

``python mutants/operators.py --count 200 --seed 0 --out docs/results/mutants-random.json``. A drawn defect is one
changed token: a comparison, an arithmetic operator, a number, a boolean or a deleted statement. For each the tests of
``tests/privacy`` that execute the changed line run, the quickest first and up to ``--seconds`` of them. A defect that
survives is listed with its line and with the explanation that ``mutants/survivors.toml`` gives. ``--coverage FILE``
keeps which test executes which line; ``--again FILE`` runs only the survivors of an earlier result that
have no explanation yet, against the present tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from run import ROOT, copied, current_commit
from selection import Coverage, forked_tests, preload

_COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
_OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
_SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}

_ELSEWHERE = {"distributed.py": ["tests/distributed"]}
"""Files whose tests are in another folder, because they start processes, in which no line is traced."""

Change = tuple[int, int, int, str]


def candidates(text: str) -> Iterator[Change]:
    """``(line, start, stop, replacement)`` of every single-line change that the operators allow."""
    lines = text.splitlines()
    for node in _executed(ast.parse(text)):
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


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, without annotations and imports for them, and without f-strings.

    Before Python 3.12 the parser does not give the place of an expression inside an f-string.
    """
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            typing_only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and not typing_only and not isinstance(child, ast.JoinedStr):
                yield from _executed(child)


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
    """Why each known survivor changes nothing that a test could see, by file, line and changed line."""
    text = (ROOT / "mutants" / "survivors.toml").read_text(encoding="utf-8")
    return {(one["file"], one["text"], one["new"]): one["why"] for one in tomllib.loads(text).get("survivor", [])}


def _explanation(known: Mapping[tuple[str, str, str], str], result: Mapping[str, Any]) -> str | None:
    return known.get((result["file"], result["text"], result["new"])) if result else None


def outcome(copy: Path, name: str, change: Change, tests: list[str], *, seconds: float) -> dict[str, object]:
    """Plant one defect in the copy and run the tests; the defect is described by its line without and with it."""
    target = copy / "src" / "sfumato" / "privacy" / name
    original = target.read_text(encoding="utf-8")
    changed = apply(original, change)
    old, new = (text.splitlines()[change[0] - 1].strip() for text in (original, changed))
    target.write_text(changed, encoding="utf-8")
    failure = forked_tests(copy, tests, seconds=seconds)
    target.write_text(original, encoding="utf-8")
    found = {"file": name, "line": change[0], "text": old, "new": new, "caught": failure is not None}
    return {**found, "tests": len(tests)} if failure is None else {**found, "how": failure}


def report(facts: dict[str, object], results: list[dict[str, object]]) -> str:
    """The result file: how many were drawn, run and caught, and what became of each."""
    caught = sum(bool(result["caught"]) for result in results)
    found = {**facts, "run": len(results), "caught": caught, "mutants": results}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Draw, run and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="Nominal seconds of tests for one defect.")
    parser.add_argument("--coverage", type=Path, help="Keep in this file which test executes which line.")
    parser.add_argument("--again", type=Path, help="Run only what is not explained in this earlier result.")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    options = parser.parse_args()
    folder = ROOT / "src" / "sfumato" / "privacy"
    every = [
        (path.relative_to(folder).as_posix(), change)
        for path in sorted(folder.rglob("*.py"))
        for change in candidates(path.read_text(encoding="utf-8"))
    ]
    drawn = random.Random(options.seed).sample(every, min(options.count, len(every)))
    command = f"python mutants/operators.py --count {options.count} --seed {options.seed} --seconds {options.seconds:g}"
    facts = {"command": command, "commit": current_commit(), "torch": version("torch")}
    earlier = json.loads(options.again.read_text(encoding="utf-8")) if options.again else {"mutants": [{}] * len(drawn)}
    if options.again:
        facts |= {"commit": earlier["commit"], "survivors again at": facts["commit"]}
    facts |= {"possible": len(every), "drawn": len(drawn)}
    known, results = explanations(), []
    with tempfile.TemporaryDirectory() as temporary:
        copy = copied(Path(temporary))
        preload()
        coverage = Coverage.measured(copy, copy / "tests" / "privacy", options.coverage)
        for (name, change), result in zip(drawn, earlier["mutants"], strict=True):
            if not result.get("caught") and _explanation(known, result) is None:
                tests = _ELSEWHERE.get(name) or coverage.tests(name, change[0], seconds=options.seconds)
                result = outcome(copy, name, change, tests, seconds=5 * options.seconds + 60)
                print(json.dumps(result, ensure_ascii=False), flush=True)
            if not result["caught"]:
                result["why"] = _explanation(known, result) or "not explained"
            results.append(result)
            options.out.write_text(report(facts, results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
