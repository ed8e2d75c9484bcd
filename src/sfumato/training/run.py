"""A run's folder: ``release/`` may leave; ``internal/`` and the ledger may not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato.files import private_folder, write_json
from sfumato.privacy import Ledger, Plan
from sfumato.privacy.ledger import new_run_id
from sfumato.privacy.session import check_limit
from sfumato.release.release import Release
from sfumato.release.signature import SigningKey
from sfumato.training.checkpoint import FolderCheckpoint


def release_folder(path: str | Path) -> Path:
    """The release of a run's folder; a release's own folder is returned as it is."""
    path = Path(path)
    return path / "release" if (path / "release").is_dir() else path


class Run:
    """Begins, resumes and finishes a run in ``folder``. The ledger is the run's own unless the collection has one."""

    def __init__(self, folder: str | Path, *, ledger: str | Path | None = None) -> None:
        self.folder = Path(folder)
        self.release = self.folder / "release"
        self.internal = self.folder / "internal"
        self.hold_out = self.internal / "hold_out.json"
        self._settings = self.internal / "run.json"
        self._created: bool | None = None
        self.ledger = Path(ledger) if ledger is not None else self.folder / "ledger.jsonl"
        self.checkpoint = FolderCheckpoint(self.internal / "checkpoint")

    def check(self, *, resume: bool, plan: Plan | None = None) -> None:
        """Refuse a folder that cannot hold this run, and a plan that does not fit its ledger; nothing is written."""
        if self.release.exists():
            raise FileExistsError(f"{self.folder} holds a finished run; choose another --out")
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"{self.folder} is a file; choose another --out")
        if resume:
            if not self._settings.exists():
                raise FileNotFoundError(f"{self.folder} holds no run to resume")
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise FileExistsError(f"{self.folder} is not empty; choose another --out, or --resume a stopped run")
        if plan is not None and self.ledger.exists():
            ledger = Ledger.read(self.ledger)
            check_limit(ledger, plan)
            ledger.reserve(new_run_id(), plan.events)

    def facts(self) -> dict[str, Any]:
        """The public facts that the run was begun with."""
        found: dict[str, Any] = json.loads(self._settings.read_text())
        return found

    def begin(self, facts: Mapping[str, Any], *, resume: bool) -> None:
        """Start with these public facts, or continue a run that was begun with the same."""
        self.check(resume=resume)
        written = json.loads(json.dumps(facts))
        if resume:
            before = self.facts()
            changed = sorted(key for key in {*before, *written} if before.get(key) != written.get(key))
            if changed:
                raise ValueError(f"the run was begun with another {', '.join(changed)}; resume with the same command")
            for torn in self.folder.glob(".release-*"):
                shutil.rmtree(torn)  # left by a crash while the release was written
            return
        self._created = not self.folder.exists()
        private_folder(self.internal)
        write_json(self._settings, written, private=True)

    def discard_if_unspent(self) -> None:
        """After an error: remove the files of a run that was begun here and has spent nothing."""
        if self._created is None or self._has_spent():
            return
        shutil.rmtree(self.internal, ignore_errors=True)
        if self.ledger.parent == self.folder:
            for path in self.folder.glob(f"{self.ledger.name}*"):
                path.unlink()
        if self._created:
            self.folder.rmdir()

    def _has_spent(self) -> bool:
        if self.ledger.parent == self.folder:
            return self.ledger.exists() and bool(Ledger.read(self.ledger).events())
        started = self.checkpoint.started
        return started is not None and self.ledger.exists() and bool(Ledger.read(self.ledger).events(started.run))

    def finish(self, release: Release, *, key: SigningKey | None = None) -> None:
        """Write the release, signed if there is a key; then what was kept for a resumption is no longer needed."""
        release.save(self.release, key=key)
        self.checkpoint.delete()
