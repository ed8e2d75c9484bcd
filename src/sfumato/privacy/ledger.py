"""The ledger: an append-only, hash-chained file of everything that was spent on one private collection.

It refuses before a spend goes over its limit, it is charged before noise is drawn, and one process at a time writes
it. Editing a line breaks the chain; cutting the tail contradicts the head kept in a side file and in every release.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sfumato.files import write_json
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.budget import AnyBudget, Budget, BudgetExceeded, budget_from_json
from sfumato.privacy.events import Event, RawAccess, SubsampledGaussian, event_from_json, merged

_ORIGIN = "0" * 64


class LedgerDamaged(RuntimeError):
    """The file is not what was written: edited, cut, or not a ledger."""


class LedgerBusy(RuntimeError):
    """Another process is writing this ledger."""


def _digest(previous: str, body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256((previous + text).encode()).hexdigest()


class Ledger:
    """Spending on one collection, over any number of runs, under one limit.

    ``Ledger(path, limit)`` opens or creates the file and holds its lock until ``close`` (or the process's death).
    ``Ledger(None, limit)`` lives in memory. ``Ledger.read(path)`` looks without writing and takes no lock.
    """

    def __init__(self, path: str | Path | None, limit: AnyBudget | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lock: int | None = None
        self._entries: list[dict[str, Any]] = []
        self._hash = _ORIGIN
        self._reserved: list[SubsampledGaussian] = []
        if self.path is not None:
            self._acquire()
            try:
                self._load(repair=True)
            except BaseException:
                self.close()
                raise
        if not self._entries:
            if limit is None:
                self.close()
                raise ValueError("a new ledger needs a limit: Budget(epsilon, delta), or NoGuarantee()")
            self.limit = limit
            self._append({"kind": "ledger", "version": 1, "limit": limit.to_json()})

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """The ledger as it stands, verified, for reading only."""
        ledger = cls.__new__(cls)
        ledger.path, ledger._lock, ledger._entries, ledger._hash, ledger._reserved = Path(path), None, [], _ORIGIN, []
        if not ledger.path.exists():
            raise FileNotFoundError(f"there is no ledger at {path}")
        ledger._load(repair=False)
        return ledger

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lock; what was reserved and not spent is free again."""
        self._reserved.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # What has been spent

    @property
    def head(self) -> tuple[int, str]:
        """Number of entries and the last one's hash: what a release keeps, so that a cut tail is seen."""
        return len(self._entries), self._hash

    def runs(self) -> list[dict[str, Any]]:
        """Each run's id, method, variant and start."""
        return [
            {key: entry[key] for key in ("run", "method", "variant", "seeded", "time")}
            for entry in self._entries
            if entry["kind"] == "run"
        ]

    def events(self, run: str | None = None) -> tuple[Event, ...]:
        """Everything charged, or one run's part, equal mechanisms added up."""
        return merged(
            event_from_json(entry["event"])
            for entry in self._entries
            if entry["kind"] == "charge" and run in (None, entry["run"])
        )

    def spent(self) -> float:
        """The ε of everything charged so far, at the limit's δ; infinite after raw access."""
        return epsilon(self.events(), self.limit.delta)

    def charged_steps(self, run: str, name: str) -> int:
        """How many steps of this event the run has paid for."""
        return sum(e.steps for e in self.events(run) if isinstance(e, SubsampledGaussian) and e.name == name)

    # Spending

    def start_run(self, *, method: str, variant: str, seeded: bool) -> str:
        """A new run; its id is random and says nothing about the data."""
        run = secrets.token_hex(8)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._append({"kind": "run", "run": run, "method": method, "variant": variant, "seeded": seeded, "time": now})
        return run

    def reserve(self, events: Sequence[SubsampledGaussian]) -> None:
        """Make room for ``events``, or refuse: after this, charging them cannot go over the limit."""
        if isinstance(self.limit, Budget):
            total = epsilon([*self.events(), *self._reserved, *events], self.limit.delta)
            if total > self.limit.epsilon:
                raise BudgetExceeded(
                    f"refused: with this, ε would be {total:.4g} at δ {self.limit.delta:g}; the ledger's limit is "
                    f"{self.limit.epsilon:g} and {self.spent():.4g} is spent"
                )
        self._reserved.extend(events)

    def charge(self, run: str, event: SubsampledGaussian) -> None:
        """Write one spend down, on disk, before its noise is drawn. It must have been reserved."""
        for index, reserved in enumerate(self._reserved):
            if reserved.times(1) == event.times(1) and reserved.steps >= event.steps:
                left = reserved.steps - event.steps
                self._reserved[index : index + 1] = [reserved.times(left)] if left else []
                break
        else:
            raise BudgetExceeded(f"refused: {event.name!r} has no reservation left in this ledger")
        self._append({"kind": "charge", "run": run, "event": event.to_json()})

    def note_raw_access(self, run: str, event: RawAccess) -> None:
        """Raw access can only be noted where no guarantee was ever promised."""
        if isinstance(self.limit, Budget):
            raise BudgetExceeded(
                f"refused: raw access costs ε = ∞ and this ledger promises ε ≤ {self.limit.epsilon:g}; "
                "an algorithm that needs the raw records runs only under NoGuarantee()"
            )
        self._append({"kind": "charge", "run": run, "event": event.to_json()})

    # The file

    @property
    def _head_path(self) -> Path:
        assert self.path is not None
        return self.path.with_name(self.path.name + ".head")

    def _acquire(self) -> None:
        assert self.path is not None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path.with_name(self.path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise LedgerBusy(
                f"another process is writing {self.path}; a ledger has one writer at a time. Wait for it to end"
            ) from None

    def _append(self, body: dict[str, Any]) -> None:
        digest = _digest(self._hash, body)
        if self.path is not None:
            if self._lock is None:
                raise RuntimeError("this ledger is closed or was opened for reading only")
            line = json.dumps({**body, "hash": digest}, ensure_ascii=False) + "\n"
            _append_durably(self.path, line)
            # The head follows the entry: a crash in between leaves one entry more than the head says, never one less.
            write_json(self._head_path, {"length": len(self._entries) + 1, "hash": digest}, private=True)
        self._entries.append(body)
        self._hash = digest

    def _load(self, *, repair: bool) -> None:
        assert self.path is not None
        raw = self.path.read_bytes() if self.path.exists() else b""
        complete, _, torn = raw.rpartition(b"\n")
        for number, line in enumerate(complete.splitlines() if complete else [], start=1):
            try:
                entry = json.loads(line)
                written = entry.pop("hash")
            except (ValueError, KeyError, AttributeError):
                raise LedgerDamaged(f"{self.path}: line {number} is not a ledger entry") from None
            self._hash = _digest(self._hash, entry)
            if self._hash != written:
                raise LedgerDamaged(f"{self.path}: line {number} does not fit the chain; the file was edited")
            self._entries.append(entry)
        self._check_head()
        if self._entries:
            if self._entries[0].get("kind") != "ledger":
                raise LedgerDamaged(f"{self.path}: the first entry is not a ledger's")
            self.limit = budget_from_json(self._entries[0]["limit"])
        elif not repair:
            raise LedgerDamaged(f"{self.path} is empty")
        if torn and repair:
            # A line cut short by a crash: its noise was never drawn, since drawing waits for the whole line.
            with open(self.path, "r+b") as file:
                file.truncate(len(raw) - len(torn))

    def _check_head(self) -> None:
        if not self._head_path.exists():
            if len(self._entries) > 1:
                raise LedgerDamaged(f"{self._head_path} is missing; without it a cut tail could not be seen")
            return
        try:
            head = json.loads(self._head_path.read_text())
            length, digest = int(head["length"]), str(head["hash"])
        except (ValueError, KeyError, TypeError):
            raise LedgerDamaged(f"{self._head_path} is not a ledger's head") from None
        if not self.holds(length, digest):
            raise LedgerDamaged(
                f"{self.path} has lost entries: its head names {length}, and the chain does not hold them"
            )

    def holds(self, length: int, digest: str) -> bool:
        """Whether the chain once stood at this head, which a release or the side file remembers."""
        if length > len(self._entries):
            return False
        current = _ORIGIN
        for entry in self._entries[:length]:
            current = _digest(current, entry)
        return current == digest


def _append_durably(path: Path, text: str) -> None:
    """Append ``text`` to a file that only its owner may read; it is on the disk when this returns."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
