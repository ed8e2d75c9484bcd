"""Jobs that are written down and never run, with results that a test writes in their place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sfumato.files import write_json
from sfumato.web import jobs as jobs_module
from sfumato.web.jobs import Job, Jobs
from sfumato.web.workspace import Workspace
from web.live import Answer, Live

CHOICES = {"purpose": "publish", "epsilon_stop": "3", "unit": "image", "delta": "1e-5", "colour": "", "classes": "10"}
FOUND: dict[str, Any] = {
    "format": "npz",
    "images": 300,
    "bad_images": 0,
    "sizes": [{"height": 28, "width": 28, "images": 300}],
    "colours": {"grey": 300},
    "persons": 0,
    "labels": {"0": 300},
    "declared_classes": None,
    "burned_in_annotations": 0,
    "bad": [],
    "suggested": {"classes": "10"},
}


def without_workers(patch: pytest.MonkeyPatch) -> None:
    """No job runs from here on."""
    idle = SimpleNamespace(Popen=lambda *_, **__: SimpleNamespace(poll=lambda: 0), DEVNULL=None)
    patch.setattr(jobs_module, "subprocess", idle)


def jobs_of(server: Live) -> Jobs:
    return Jobs(Workspace.opened([server.root]))


def finish(jobs: Jobs, job: Job | str, state: str, output: Any = None, **status: Any) -> None:
    """Let a job have come to this state."""
    folder = jobs.folder(job if isinstance(job, str) else job.id)
    write_json(folder / "status.json", {"state": state, **status}, private=True)
    if output is not None:
        write_json(folder / "output-0", output, private=True)


def inspected(server: Live, name: str = "digits.npz", **found: Any) -> str:
    """A collection of this name that was inspected."""
    path = server.root / name
    if not path.exists():
        path.touch()
    jobs = jobs_of(server)
    collection = jobs.workspace.add_collection(path)
    jobs.record("inspect", "What is in it", [("inspect", str(path))], {**FOUND, **found}, collection=collection)
    return collection


def planned(server: Live, collection: str, **fields: str) -> Answer:
    return server.post(f"/collections/{collection}/plan", {**CHOICES, **fields})


def started(server: Live, plan: str, fields: Mapping[str, str]) -> Answer:
    """A training from a plan, by its address."""
    usual = {"method": "dp-merf", "settings": "features=100 iterations=20 batch_size=20", "limit": "1"}
    return server.post(f"{plan}/train", {**usual, **fields})


def ledger_at(server: Live, collection: str) -> Path:
    return server.folder / "ledgers" / f"{collection}.jsonl"
