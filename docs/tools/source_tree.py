"""Checks of the source tree: imports point one way, nothing unsafe is read, tests can fail, what is named exists."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from finding import ROOT, Finding, line_of

SOURCE = ROOT / "src" / "sfumato"
TESTS = ROOT / "tests"
# Every package and top-level module, lowest layer first; each may import from its own layer's package and those below.
LAYERS = (
    ("files", "texts"),
    ("privacy", "networks"),
    ("data",),
    ("options",),
    ("release",),
    ("training",),
    ("methods",),
    ("evaluation", "planning"),
    ("audit",),
    ("experiments",),
    ("report",),
    ("web",),
    ("cli",),
)
UNSAFE = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "yaml.load"}
ATOMIC = {"os.replace", "os.rename", "tempfile.mkstemp"}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(source: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported."""
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def upward(where: str, source: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports of a file of the package from the layers above it, or beside it."""
    layer = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    own = where.split("/")[0].removesuffix(".py")
    for line, name in imported(source):
        parts = name.split(".")
        if parts[0] == "sfumato" and len(parts) > 1 and parts[1] in layer and parts[1] != own:
            if own not in layer:
                yield line, f"{own} has no layer in docs/tools/source_tree.py"
            elif layer[parts[1]] >= layer[own]:
                yield line, f"{own} imports {name}, which is not below it"


def imports() -> Iterator[Finding]:
    """Imports that point up."""
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        if "/" in where or not where.startswith("_"):
            for line, text in dict.fromkeys(upward(where, _tree(path))):
                yield Finding(path, line, text)


def unsafe_code() -> Iterator[Finding]:
    """Pickles and code that is read from files; and files written without the one atomic writer."""
    for path in sorted(SOURCE.rglob("*.py")):
        for line, name in imported(_tree(path)):
            if name.split(".")[0] in UNSAFE:
                yield Finding(path, line, f"{name} is imported: only safe formats are read and written")
        own_writer = path.name == "files.py"
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_CALLS:
                yield Finding(path, node.lineno, f"{ast.unparse(node.func)} runs what it reads")
            if isinstance(node, ast.Attribute) and not own_writer and ast.unparse(node) in ATOMIC:
                yield Finding(path, node.lineno, f"{ast.unparse(node)}: sfumato.files writes files whole or not at all")


# Tests


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Assertions that always hold: of constants, of a thing compared with itself; and tests that do nothing."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not any(map(_does, node.body)):
            yield node.lineno, f"{node.name} does nothing"
        if not isinstance(node, ast.Assert):
            continue
        parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        if any(isinstance(part, ast.Constant | ast.Tuple | ast.JoinedStr) for part in parts):
            yield node.lineno, f"this assertion cannot fail: {ast.unparse(node.test)}"
        for part in ast.walk(node.test):
            if isinstance(part, ast.Compare):
                sides = [ast.unparse(side) for side in (part.left, *part.comparators)]
                calls = any(isinstance(side, ast.Call) for side in ast.walk(part))
                if len(set(sides)) < len(sides) and not calls:
                    yield node.lineno, f"this compares a thing with itself: {ast.unparse(part)}"


def _does(node: ast.stmt) -> bool:
    return not isinstance(node, ast.Pass) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def assertions() -> Iterator[Finding]:
    """Tests that cannot fail."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for line, text in faults(path.read_text(encoding="utf-8")):
            yield Finding(path, line, text)


def _is_test(file: Path, name: str) -> bool:
    functions = ast.walk(_tree(file)) if file.is_file() else ()
    return name.partition("[")[0] in {one.name for one in functions if isinstance(one, ast.FunctionDef)}


def planted_defects() -> Iterator[Finding]:
    """Entries of mutants/chosen.toml that no longer apply, or whose test is gone."""
    path = ROOT / "mutants" / "chosen.toml"
    text = path.read_text(encoding="utf-8")
    for mutant in tomllib.loads(text)["mutant"]:
        line = line_of(text, f"defect = {mutant['defect']!r}")
        source = (SOURCE / mutant["file"]).read_text(encoding="utf-8") if (SOURCE / mutant["file"]).is_file() else ""
        if source.count(mutant["old"]) != 1 or mutant["old"] == mutant["new"]:
            yield Finding(path, line, f"{mutant['defect']}: it no longer applies to {mutant['file']}")
        file, _, name = mutant["test"].partition("::")
        if not _is_test(TESTS / file, name):
            yield Finding(path, line, f"{mutant['defect']}: there is no test {mutant['test']}")


def advisory() -> Iterator[Finding]:
    """Findings of the advisory and of the known vulnerabilities without a test, or whose test is gone."""
    for page in ("advisory.md", "known-vulnerabilities.md"):
        path = ROOT / "docs" / "reference" / page
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
            if line.startswith("| ") and "`tests/" in line and not named:
                yield Finding(path, number, "this finding names no test")
            for file, name in named:
                if not _is_test(ROOT / file, name):
                    yield Finding(path, number, f"there is no test {file}::{name}")


LINES = re.compile(r"^\| `([\w/]+(?:\.py|/))` \| (\d+) \|", re.MULTILINE)
PRIVACY = SOURCE / "privacy"


def _lines(path: Path) -> int:
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def counted(text: str) -> str:
    """The page of the trusted base with the numbers of lines as they are."""
    return LINES.sub(
        lambda row: f"| `{row[1]}` | {_lines(PRIVACY / row[1])} |" if (PRIVACY / row[1]).exists() else row[0], text
    )


def trusted_base() -> Iterator[Finding]:
    """Every file that an ε depends on is listed once in privacy/README.md, with about its number of lines."""
    path = PRIVACY / "README.md"
    text = path.read_text(encoding="utf-8")
    listed = [row[1] for row in LINES.finditer(text)]
    there = {one.name for one in PRIVACY.glob("*.py") if one.name != "__init__.py"}
    there |= {f"{one.parent.name}/" for one in PRIVACY.glob("*/__init__.py")}
    for name in sorted(there ^ set(listed) | {name for name in listed if listed.count(name) > 1}):
        yield Finding(path, line_of(text, f"`{name}`"), f"{name} is listed {listed.count(name)} times")
    for row in LINES.finditer(text):
        # A sum of lines that is a tenth off tells a reader the same.
        if row[1] in there and abs(_lines(PRIVACY / row[1]) - int(row[2])) > max(10, _lines(PRIVACY / row[1]) // 10):
            yield Finding(
                path, line_of(text, row.start()), f"{row[1]} has {_lines(PRIVACY / row[1])} lines, not {row[2]}"
            )
