"""Which results are older than the code that they measure: ``make check`` prints them."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sfumato
from sfumato.experiments.results import ResultSet
from sfumato.methods import METHODS, find

SOURCE = Path(sfumato.__file__).parent
NUMBERS = ("data", "evaluation", "methods", "networks", "privacy", "training")
"""Packages of which a change can change a number. What else a module imports prints, stores or plans."""
NOT_NUMBERS = (
    "data/cache.py",
    "data/formats/",
    "data/holdout.py",
    "evaluation/results.py",
    "methods/registry.py",
    "privacy/distributed.py",
    "privacy/gradients/one_row.py",
    "privacy/interfaces.py",
    "privacy/ledger.py",
    "training/checkpoint.py",
    "training/distributed.py",
    "training/profiling.py",
)
"""Of these, what stores, shares, checks or times: beginnings of names. The format of a result's data is counted."""
_FORMATS = {
    "celeba": "data/formats/tables.py",
    "fashion-mnist": "data/formats/arrays.py",
    "mnist": "data/formats/arrays.py",
}
_AUDITS = {"canaries": "audit/canary.py", "membership": "audit/membership.py"}


@dataclass(frozen=True)
class Stale:
    """A result that should be measured again, and the files of the package that changed since."""

    name: str
    commit: str | None
    reason: str
    files: tuple[str, ...] = ()


def stale_results(results: Mapping[str, ResultSet]) -> list[Stale]:
    """The results without a commit, of changed sources, or older than the last change of what they measure."""
    found = (_stale(name, result) for name, result in results.items())
    return [one for one in found if one is not None]


def without_commit(folder: Path, results: Mapping[str, ResultSet]) -> list[Stale]:
    """Files in the folder with a format of their own that do not say from which commit they are."""
    others = [path for path in sorted(folder.glob("*.json")) if path.stem not in results]
    unknown = [path for path in others if json.loads(path.read_text(encoding="utf-8")).get("commit") is None]
    return [Stale(path.stem, None, "the commit was not recorded") for path in unknown]


def _stale(name: str, result: ResultSet) -> Stale | None:
    commit = result.provenance.commit
    superseded = sum(bool(row.superseded) for row in result.rows)
    if superseded:
        return Stale(name, commit, f"{superseded} of {len(result.rows)} rows are superseded")
    if commit is None:
        return Stale(name, commit, "the commit was not recorded")
    if commit.endswith("+"):
        return Stale(name, commit, "the sources had changes that were not committed")
    try:
        files = changed_since(commit, dependencies(result))
    except (OSError, subprocess.CalledProcessError):
        return Stale(name, commit, "the commit is not in this repository")
    return Stale(name, commit, f"changed since: {', '.join(files)}", tuple(files)) if files else None


def changed_since(commit: str, files: Sequence[str]) -> list[str]:
    """Those of the package's files whose code is another than at the commit; comments and docstrings do not count."""
    wanted = set(files)
    return [name for name in _changed_files(commit) if name in wanted and _code_differs(commit, name)]


@cache
def _changed_files(commit: str) -> tuple[str, ...]:
    return tuple(sorted(_git("diff", "--relative", "--name-only", commit, "HEAD").split()))


@cache
def _code_differs(commit: str, name: str) -> bool:
    # A file that was not there at the commit, or is not there now, has other code.
    return len({_code_at(commit, name), _code_at("HEAD", name)}) > 1


@cache
def _code_at(commit: str, name: str) -> str | None:
    try:
        return _code(_git("show", f"{commit}:./{name}"))
    except subprocess.CalledProcessError:
        return None


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(SOURCE), *words], capture_output=True, text=True, check=True).stdout


def _code(text: str) -> str:
    """The syntax tree without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not _is_text(part)]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# What a number depends on


def dependencies(result: ResultSet) -> list[str]:
    """The package's files that the numbers depend on: the method, what reads the data, what evaluates, and imports."""
    starts = {"data/reader.py", "data/images.py"}
    for row in result.rows:
        if row.method in METHODS:
            starts.add(str(Path(inspect.getfile(find(str(row.method)))).relative_to(SOURCE)))
        if row.protocol in _AUDITS:
            starts.add(_AUDITS[row.protocol])
        elif row.data.split in ("drawn", "none"):
            starts.add("experiments/reproduction.py")
        else:
            starts.add("evaluation/evaluate.py")
        starts |= {file for name, file in _FORMATS.items() if row.data.name.startswith(name)}
        if row.data.name == "digits":
            starts.add("data/digits.py")
    found, waiting = set(starts), list(starts)
    while waiting:
        new = _imported(waiting.pop()) - found
        found |= new
        waiting += new
    if "NVIDIA" not in result.provenance.device:
        found.discard("privacy/gradients/compiled.py")  # which only a GPU uses
    return sorted(found)


@cache
def _imported(name: str) -> frozenset[str]:
    """The files of ``NUMBERS`` that a file imports, a name of a package from the file that defines it."""
    found = set()
    for node in _runtime_nodes(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sfumato."):
            found |= {_defining(str(node.module), alias.name) for alias in node.names}
    counted = (file for file in found if file.split("/")[0] in NUMBERS and not file.startswith(NOT_NUMBERS))
    return frozenset(file for file in counted if (SOURCE / file).is_file())


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those for type checkers alone."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _runtime_nodes(child)


@cache
def _defining(module: str, name: str) -> str:
    path = "/".join(module.split(".")[1:])
    if (SOURCE / path / f"{name}.py").is_file():
        return f"{path}/{name}.py"
    if not (SOURCE / path / "__init__.py").is_file():
        return f"{path}.py"
    for node in ast.parse((SOURCE / path / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and any(name == (alias.asname or alias.name) for alias in node.names):
            return _defining(str(node.module), name)
    return f"{path}/__init__.py"
