"""Sizes of ``src/sfumato`` by package: modules, lines, the share of import lines, and the 90th percentile of functions.

``python docs/tools/sizes.py`` prints a table.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "src" / "sfumato"


def functions(tree: ast.AST) -> list[int]:
    """The lines of every function."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in ast.walk(tree) if isinstance(node, kinds)]


def import_lines(tree: ast.AST) -> int:
    """The lines of every import statement, at the top and in functions."""
    kinds = (ast.Import, ast.ImportFrom)
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in ast.walk(tree) if isinstance(node, kinds))


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    modules, lines, imports = defaultdict(int), defaultdict(int), defaultdict(int)
    lengths: dict[str, list[int]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).parts[0] if path.parent != ROOT else "."
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        for name in (package, "all"):
            modules[name] += 1
            lines[name] += text.count("\n")
            imports[name] += import_lines(tree)
            lengths[name] += functions(tree)
    print(f"{'package':<12}{'modules':>8}{'lines':>8}{'imports':>9}{'functions p90':>15}")
    for name in [*sorted(set(modules) - {"all"}), "all"]:
        longest = sorted(lengths[name])
        p90 = longest[int(0.9 * len(longest))] if longest else 0
        print(f"{name:<12}{modules[name]:>8}{lines[name]:>8}{100 * imports[name] / lines[name]:>8.1f}%{p90:>15}")


if __name__ == "__main__":
    main()
