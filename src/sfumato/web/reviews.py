"""The review of a run: which commands compare it with its collection."""

from __future__ import annotations

from sfumato.web import commands
from sfumato.web.choices import Choices
from sfumato.web.contents import RunSummary
from sfumato.web.workspace import NotThere, Refused, Workspace


def review_commands(workspace: Workspace, run: RunSummary) -> list[list[str]] | None:
    """Samples, evaluation and pages; ``None`` where the page does not know the run's collection or cannot find it."""
    if run.job is None or run.job.collection is None:
        return None
    try:
        path = workspace.collection(run.job.collection)
    except (NotThere, Refused):
        return None
    samples = run.path / "internal" / "samples"
    return commands.review(path, run.path, samples, Choices.from_json(run.job.choices))
