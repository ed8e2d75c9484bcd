"""An append-only file of JSON entries, one a line, each with the hash of everything before it.

One process at a time writes it, and an entry is on the disk when ``append`` returns. Editing a line breaks the chain; a
removed tail contradicts the head, which is kept in a side file and by whoever stored it. The chain is over the bytes of
the lines (``docs/reference/file-formats.md``), and over the hash of each line rather than the line, so that a line can
be withheld from a transcript without breaking it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato.files import write_json

ORIGIN = "0" * 64


class LedgerDamaged(RuntimeError):
    """The file is not what was written: edited, shortened, or not a ledger."""


class LedgerBusy(RuntimeError):
    """Another process is writing this ledger."""


_SUFFIX = re.compile(rb', "hash": "([0-9a-f]{64})"}\Z')


def line_of(entry: Mapping[str, Any]) -> bytes:
    """An entry as a line has it, without its hash."""
    return json.dumps(entry, ensure_ascii=False).encode()


def line_hash(line: bytes) -> str:
    """What stands for a line that is withheld."""
    return hashlib.sha256(line).hexdigest()


def linked(previous: str, line: str) -> str:
    """The hash of everything up to a line, from that of what comes before it and the line's own."""
    return hashlib.sha256((previous + line).encode()).hexdigest()


def chained(previous: str, entry: Mapping[str, Any]) -> str:
    """The same in files of versions 0.1.0 and 0.2.0, which chain the entries in one spelling of JSON."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256((previous + text).encode()).hexdigest()


def parsed(line: bytes) -> tuple[dict[str, Any], bytes, str]:
    """The entry of a line, the line without its hash, and the hash."""
    if (found := _SUFFIX.search(line)) is None:
        raise ValueError("the line has no hash at its end")
    body = line[: found.start()] + b"}"
    entry = json.loads(body)
    if not isinstance(entry, dict) or "kind" not in entry:
        raise ValueError("the line is not an entry")
    return entry, body, found[1].decode()


class Journal:
    """The entries of one file; without a path they are kept in memory."""

    def __init__(self, path: str | Path | None, *, write: bool) -> None:
        # Resolved, so that a symbolic link has the lock and the head of the file it points to.
        self.path = None if path is None else Path(path).resolve()
        self.entries: list[dict[str, Any]] = []
        self.hashes = [ORIGIN]
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
        return len(self.entries), self.hashes[-1]

    def holds(self, length: int, digest: str) -> bool:
        """Whether this was the head at some time."""
        return 0 <= length < len(self.hashes) and self.hashes[length] == digest

    def append(self, entry: dict[str, Any]) -> None:
        """Write an entry to the disk."""
        line = line_of(entry)
        digest = self._next_hash(entry, line)
        if self.path is not None:
            if self._lock is None:
                raise RuntimeError("this ledger is closed or was opened for reading only")
            self._check_place(self.path)
            _append_durably(
                self._lock, self.path, line[:-1] + f', "hash": "{digest}"}}\n'.encode(), new=not self.entries
            )
            # The head follows the entry: a crash in between leaves one entry more than the head says, never one less.
            write_json(_head_path(self.path), {"length": len(self.entries) + 1, "hash": digest}, private=True)
        self.entries.append(entry)
        self.hashes.append(digest)

    def close(self) -> None:
        """Give up the lock. A file that was made for it and got no entry is removed."""
        if self._lock is not None and self.path is not None:
            if os.fstat(self._lock).st_size == 0 and _same_file(self._lock, self.path):
                self.path.unlink()
            os.close(self._lock)
            self._lock = None

    def _next_hash(self, entry: Mapping[str, Any], line: bytes) -> str:
        first = self.entries[0] if self.entries else entry
        if int(first.get("version", 1)) < 3:
            return chained(self.hashes[-1], entry)
        return linked(self.hashes[-1], line_hash(line))

    def _acquire(self, path: Path) -> None:
        """Lock the file itself: whatever name it is opened by, there is one lock."""
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            self._lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._lock)
                self._lock = None
                raise LedgerBusy(
                    f"another process is writing {path}; a ledger has one writer at a time. Wait for it to end"
                ) from None
            if _same_file(self._lock, path):
                return
            os.close(self._lock)  # removed by whoever held the lock

    def _check_place(self, path: Path) -> None:
        """A charge that is written to a file which no longer has this name would be lost."""
        if self._lock is None or not _same_file(self._lock, path):
            raise LedgerDamaged(f"{path} was replaced or removed while it was written; nothing more is charged to it")

    def _load(self, path: Path, *, repair: bool) -> None:
        raw = path.read_bytes() if path.exists() else b""
        complete, _, torn = raw.rpartition(b"\n")
        for number, line in enumerate(complete.split(b"\n") if complete else [], start=1):
            try:
                entry, body, written = parsed(line)
            except ValueError:
                raise LedgerDamaged(f"{path}: line {number} is not a ledger entry") from None
            if self._next_hash(entry, body) != written:
                raise LedgerDamaged(f"{path}: line {number} does not fit the chain; the file was edited")
            self.entries.append(entry)
            self.hashes.append(written)
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


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _append_durably(descriptor: int, path: Path, data: bytes, *, new: bool) -> None:
    """Append to a file that only its owner may read; the data are on the disk when this returns."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
        if new:
            # The run's folder may be new as well.
            for folder in (path.parent, path.parent.parent):
                _flush_folder(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # a full disk is told without the file's name


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
