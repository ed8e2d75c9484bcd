"""Which results are older than the code that they measure."""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sfumato
from sfumato.experiments.results import ResultSet
from sfumato.methods import METHODS, find

SOURCE = Path(sfumato.__file__).parent
SHARED = ("privacy", "networks", "training", "methods/parts", "evaluation")
"""What every training and its evaluation use, besides the method's own file."""


@dataclass(frozen=True)
class Stale:
    """A result that should be measured again."""

    name: str
    commit: str | None
    reason: str


def stale_results(results: Mapping[str, ResultSet]) -> list[Stale]:
    """The results without a commit, of changed sources, or older than the last change of what they measure."""
    found = []
    for name, result in results.items():
        reason = _reason(result)
        if reason:
            found.append(Stale(name, result.provenance.commit, reason))
    return found


def without_commit(folder: Path, results: Mapping[str, ResultSet]) -> list[Stale]:
    """Files in the folder with a format of their own that do not say from which commit they are."""
    others = [path for path in sorted(folder.glob("*.json")) if path.stem not in results]
    unknown = [path for path in others if json.loads(path.read_text(encoding="utf-8")).get("commit") is None]
    return [Stale(path.stem, None, "the commit was not recorded") for path in unknown]


def _reason(result: ResultSet) -> str:
    if any(row.superseded for row in result.rows):
        count = sum(bool(row.superseded) for row in result.rows)
        return f"{count} of {len(result.rows)} rows are superseded"
    commit = result.provenance.commit
    if commit is None:
        return "the commit was not recorded"
    if commit.endswith("+"):
        return "the sources had changes that were not committed"
    changed = changed_since(commit, result)
    return f"changed since: {', '.join(changed)}" if changed else ""


def changed_since(commit: str, result: ResultSet) -> list[str]:
    """The parts of the source that changed after a commit and that the result depends on."""
    paths = [SOURCE / name for name in SHARED]
    if any(row.protocol in ("canaries", "membership") for row in result.rows):
        paths.append(SOURCE / "audit")
    paths += [Path(inspect.getfile(find(name))) for name in {row.method for row in result.rows} if name in METHODS]
    command = ["git", "-C", str(SOURCE), "diff", "--name-only", commit, "HEAD", "--", *map(str, paths)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return ["the commit is not in this repository"]
    # A folder says enough: sources are named up to two levels below the package.
    return sorted({"/".join(path.split("/")[2:4]) for path in found})
