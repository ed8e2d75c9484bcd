"""What has to be read to believe an ε: its lines, their limit, and the proofs of the functions that decide a bound.

    python docs/tools/trusted.py --accept NAME …     after reading the source and its proof: keep the hash of the source

A function or class whose docstring has a ``Guarantee.`` has a section in ``docs/explanation/proofs.md``, headed by its
name and the hash of the source that the section was written for.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from finding import ROOT, Finding, line_of
from source_tree import PRIVACY

MOST_LINES = 6732
"""The limit on the lines of the trusted base; it is lowered when they are fewer."""

PROOFS = ROOT / "docs" / "explanation" / "proofs.md"
READING = ROOT / "docs" / "explanation" / "what-to-read.md"
_SECTION = re.compile(r"^## `([\w/.]+)`\n\n<!-- source: ([0-9a-f]*) -->\n", re.MULTILINE)
_ROW = re.compile(r"^(\| `([\w/]+\.py)` \| )[\d,]+( \| (trusted|contained) \|)", re.MULTILINE)
_TOTAL = re.compile(r"(<!-- lines: (all|trusted|contained|limit) -->)[\d,]*(<!-- /lines -->)")


def lines(path: Path) -> int:
    """Of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def all_lines() -> int:
    """Of the trusted base."""
    return sum(lines(path) for path in PRIVACY.rglob("*.py"))


def counted(text: str) -> str:
    """A page with the numbers of lines as they are."""
    totals = {"all": all_lines(), "trusted": 0, "contained": 0, "limit": MOST_LINES}
    for row in _ROW.finditer(READING.read_text(encoding="utf-8")):
        totals[row[4]] += lines(PRIVACY / row[2]) if (PRIVACY / row[2]).is_file() else 0
    text = _ROW.sub(
        lambda row: f"{row[1]}{lines(PRIVACY / row[2])}{row[3]}" if (PRIVACY / row[2]).is_file() else row[0], text
    )
    return _TOTAL.sub(lambda mark: f"{mark[1]}{totals[mark[2]]:,}{mark[3]}", text)


def guaranteed() -> dict[str, str]:
    """The name of each function, method or class that states a guarantee, and the hash of its source."""
    found = {}
    for path in sorted(PRIVACY.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = path.relative_to(PRIVACY).with_suffix("").as_posix()
        nodes = [("", node) for node in ast.parse(text).body]
        for prefix, node in nodes:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}{node.name}"
                if isinstance(node, ast.ClassDef):
                    nodes += [(f"{name}.", one) for one in node.body]
                if "Guarantee." in (ast.get_docstring(node) or ""):
                    source = ast.get_source_segment(text, node) or ""
                    found[f"{module}.{name}"] = hashlib.sha256(source.encode()).hexdigest()[:16]
    return found


def proofs() -> Iterator[Finding]:
    """Guarantees without a proof, proofs of what states none, and proofs of a source that has changed since."""
    text, known = PROOFS.read_text(encoding="utf-8"), guaranteed()
    proved = {row[1]: (row[2], row.start()) for row in _SECTION.finditer(text)}
    for name in sorted(known.keys() - proved.keys()):
        yield Finding(PROOFS, 1, f"{name} states a guarantee and has no proof")
    for name, (digest, place) in proved.items():
        if name not in known:
            yield Finding(PROOFS, line_of(text, place), f"{name} states no guarantee in the trusted base")
        elif digest != known[name]:
            hint = f"read both, then python docs/tools/trusted.py --accept {name}"
            yield Finding(PROOFS, line_of(text, place), f"the source of {name} has changed since its proof: {hint}")


def size() -> Iterator[Finding]:
    """Files that the reading list lacks or that are gone, tests it names that are gone, and more lines than allowed."""
    text = READING.read_text(encoding="utf-8")
    listed = [row[2] for row in _ROW.finditer(text)]
    there = {path.relative_to(PRIVACY).as_posix() for path in PRIVACY.rglob("*.py")} - {"__init__.py"}
    there -= {"gradients/__init__.py"}
    for name in sorted(there ^ set(listed) | {name for name in listed if listed.count(name) > 1}):
        yield Finding(READING, 1, f"{name} is listed {listed.count(name)} times")
    for name in sorted(set(re.findall(r"`(tests/[\w/.]+\.py)`", text))):
        if not (ROOT / name).is_file():
            yield Finding(READING, line_of(text, name), f"there is no {name}")
    if all_lines() > MOST_LINES:
        yield Finding(READING, 1, f"the trusted base has {all_lines()} lines, more than {MOST_LINES}")


def accept(names: list[str]) -> None:
    """Keep the hashes of these sources."""
    text, known = PROOFS.read_text(encoding="utf-8"), guaranteed()
    for name in names:
        text, changed = re.subn(
            rf"(?m)(^## `{re.escape(name)}`\n\n<!-- source: )[0-9a-f]*( -->)", rf"\g<1>{known[name]}\g<2>", text
        )
        if not changed:
            raise SystemExit(f"there is no section for {name} in {PROOFS.name}")
    PROOFS.write_text(text, encoding="utf-8")


def main(words: list[str]) -> None:
    """Accept, or list what is guaranteed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", nargs="+", default=[], metavar="NAME", help="Names as in the headings.")
    chosen = parser.parse_args(words)
    accept(chosen.accept)
    for name, digest in guaranteed().items():
        print(digest, name)


if __name__ == "__main__":
    main(sys.argv[1:])
