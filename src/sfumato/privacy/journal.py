"""An append-only file of JSON entries, one a line, each with the hash of everything before it.

One process at a time writes it, and an entry is on the disk when ``append`` returns. Editing a line breaks the chain; a
removed tail contradicts the head, which is kept in a side file and by whoever stored it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from sfumato.files import write_json

ORIGIN = "0" * 64


class LedgerDamaged(RuntimeError):
    """The file is not what was written: edited, shortened, or not a ledger."""


class LedgerBusy(RuntimeError):
    """Another process is writing this ledger."""


def chained(previous: str, entry: dict[str, Any]) -> str:
    """The hash of an entry and of everything before it."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256((previous + text).encode()).hexdigest()


class Journal:
    """The entries of one file; without a path they are kept in memory."""

    def __init__(self, path: str | Path | None, *, write: bool) -> None:
        # Resolved, so that a symbolic link has the lock and the head of the file it points to.
        self.path = None if path is None else Path(path).resolve()
        self.entries: list[dict[str, Any]] = []
        self._hash = ORIGIN
        self._lock: int | None = None
        if self.path is None:
            return
        if write:
            self._acquire(self.path)
        try:
            self._load(self.path, repair=write)
        except BaseException:
            self.close()
            raise

    @property
    def head(self) -> tuple[int, str]:
        """Number of entries, and the hash of the last one."""
        return len(self.entries), self._hash

    def holds(self, length: int, digest: str) -> bool:
        """Whether this was the head at some time."""
        current = ORIGIN
        for entry in self.entries[:length]:
            current = chained(current, entry)
        return length <= len(self.entries) and current == digest

    def append(self, entry: dict[str, Any]) -> None:
        """Write an entry to the disk."""
        digest = chained(self._hash, entry)
        if self.path is not None:
            if self._lock is None:
                raise RuntimeError("this ledger is closed or was opened for reading only")
            _append_durably(self.path, json.dumps({**entry, "hash": digest}, ensure_ascii=False) + "\n")
            # The head follows the entry: a crash in between leaves one entry more than the head says, never one less.
            write_json(_head_path(self.path), {"length": len(self.entries) + 1, "hash": digest}, private=True)
        self.entries.append(entry)
        self._hash = digest

    def close(self) -> None:
        """Give up the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _acquire(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path.with_name(path.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise LedgerBusy(
                f"another process is writing {path}; a ledger has one writer at a time. Wait for it to end"
            ) from None

    def _load(self, path: Path, *, repair: bool) -> None:
        raw = path.read_bytes() if path.exists() else b""
        complete, _, torn = raw.rpartition(b"\n")
        for number, line in enumerate(complete.splitlines() if complete else [], start=1):
            try:
                entry = json.loads(line)
                written = entry.pop("hash")
            except (ValueError, KeyError, AttributeError):
                raise LedgerDamaged(f"{path}: line {number} is not a ledger entry") from None
            self._hash = chained(self._hash, entry)
            if self._hash != written:
                raise LedgerDamaged(f"{path}: line {number} does not fit the chain; the file was edited")
            self.entries.append(entry)
        self._check_head(path)
        if torn and repair:
            # A line that a crash left incomplete: its noise was never drawn, since drawing waits for the whole line.
            with open(path, "r+b") as file:
                file.truncate(len(raw) - len(torn))

    def _check_head(self, path: Path) -> None:
        head_path = _head_path(path)
        if not head_path.exists():
            if len(self.entries) > 1:
                raise LedgerDamaged(f"{head_path} is missing; without it a removed tail would go unnoticed")
            return
        try:
            head = json.loads(head_path.read_text())
            length, digest = int(head["length"]), str(head["hash"])
        except (ValueError, KeyError, TypeError):
            raise LedgerDamaged(f"{head_path} is not a ledger's head") from None
        if not self.holds(length, digest):
            raise LedgerDamaged(f"{path} has lost entries: its head names {length}, and the chain does not hold them")


def _head_path(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _append_durably(path: Path, text: str) -> None:
    """Append ``text`` to a file that only its owner may read; it is on the disk when this returns."""
    new = not path.exists()
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
        if new:
            # The run's folder may be new as well.
            for folder in (path.parent, path.parent.parent):
                _flush_folder(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # a full disk is told without the file's name
    finally:
        os.close(descriptor)


def _flush_folder(folder: Path) -> None:
    """The name of a new file outlives a loss of power only if its folder is on the disk too."""
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(place)
        finally:
            os.close(place)
    except OSError as error:
        # Some network disks flush no folders, and a folder above may be closed to this user.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM):
            raise
