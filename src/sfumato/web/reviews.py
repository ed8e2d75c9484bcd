"""The review of a run: which commands compare it with its collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.web import commands
from sfumato.web.contents import RunSummary
from sfumato.web.workspace import NotThere, Refused, Workspace

_USUAL = {"missing_labels": "refuse", "split": "train"}


def review_commands(workspace: Workspace, run: RunSummary) -> list[list[str]] | None:
    """Samples, evaluation and pages; ``None`` where the run's collection is not below the roots, or not any more."""
    reading = dict(run.facts.get("reading", {}))
    try:
        path = workspace.inside(run.facts["data"])
        if reading.get("persons") is not None:
            workspace.inside(reading["persons"])
    except (KeyError, NotThere, Refused):
        return None
    return commands.review(path, run.path, run.path / "internal" / "samples", reading_options(reading))


def reading_options(reading: Mapping[str, Any]) -> list[str]:
    """The options with which a run has read its collection, from what it wrote down.

    >>> reading_options({"size": 28, "no_labels": True, "split": "train", "classes": None})
    ['--size=28', '--no-labels']
    """
    words = []
    for key, value in reading.items():
        if value is True:
            words.append(f"--{key.replace('_', '-')}")
        elif value not in (None, False, _USUAL.get(key)):
            words.append(f"--{key.replace('_', '-')}={value}")
    return words
