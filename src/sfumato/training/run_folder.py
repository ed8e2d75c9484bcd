"""A run's folder: ``release/`` may leave; ``internal/`` and the ledger may not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato.files import private_folder, write_json
from sfumato.release.release import Release
from sfumato.training.checkpoint import FolderCheckpoint


class Run:
    """Begins, resumes and finishes a run in ``folder``. The ledger is the run's own unless the collection has one."""

    def __init__(self, folder: str | Path, *, ledger: str | Path | None = None) -> None:
        self.folder = Path(folder)
        self.release = self.folder / "release"
        self.internal = self.folder / "internal"
        self.ledger = Path(ledger) if ledger is not None else self.folder / "ledger.jsonl"
        self.checkpoint = FolderCheckpoint(self.internal / "checkpoint")

    def begin(self, facts: Mapping[str, Any], *, resume: bool) -> None:
        """Start with these public facts, or go on with a run that was begun with the same."""
        settings = self.internal / "run.json"
        written = json.loads(json.dumps(facts))
        if self.release.exists():
            raise FileExistsError(f"{self.folder} holds a finished run; choose another --out")
        if resume:
            if not settings.exists():
                raise FileNotFoundError(f"{self.folder} holds no run to resume")
            before = json.loads(settings.read_text())
            changed = sorted(key for key in {*before, *written} if before.get(key) != written.get(key))
            if changed:
                raise ValueError(f"the run was begun with another {', '.join(changed)}; resume with the same command")
            return
        if self.folder.exists() and any(self.folder.iterdir()):
            raise FileExistsError(f"{self.folder} is not empty; choose another --out, or --resume a stopped run")
        private_folder(self.internal)
        write_json(settings, written, private=True)

    def finish(self, release: Release) -> None:
        """Write the release; then what was kept for a resumption is no longer needed."""
        release.save(self.release)
        self.checkpoint.delete()
