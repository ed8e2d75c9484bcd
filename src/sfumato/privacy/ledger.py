"""The ledger: everything that was spent on one private collection, over any number of runs, under one limit.

It refuses a run before the limit would be exceeded, and it is charged before noise is drawn. It is an append-only file
of JSON entries, one a line, each with the hash of everything before it. One process at a time writes it, and an entry
is on the disk when ``append`` returns. Editing a line breaks the chain; a removed tail contradicts the head, which is
kept in a side file and by whoever stored it. The chain is over the bytes of the lines
(``docs/reference/file-formats.md``), and over the hash of each line rather than the line, so that a line can be
withheld from a transcript without breaking it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.files import write_json
from sfumato.privacy.accounting import check_first_plan, epsilon, filter_order, filtered_epsilon
from sfumato.privacy.budget import AnyBudget, Budget, BudgetExceeded, budget_from_json
from sfumato.privacy.events import Charged, Event, RawAccess, SubsampledGaussian, event_from_json, merged

if TYPE_CHECKING:
    from sfumato.privacy.interfaces import PublicInput


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
        """Write an entry to the disk.

        Guarantee. When this returns, the entry and its hash are on the disk, and the file still has its name.
        """
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


# What runs were planned to spend and have spent

_Entries = Sequence[Mapping[str, Any]]


def _public_inputs(entries: _Entries, run: str) -> list[dict[str, str]]:
    """Name, fingerprint and, of a synthetic one, the release of every collection the run treated as public."""
    keys = ("name", "release", "proof")
    own = (entry for entry in entries if entry["kind"] == "public" and entry["run"] == run)
    # Version 0.2.0 wrote the hash of the content itself.
    return [
        {
            **{key: entry[key] for key in keys if entry.get(key)},
            "fingerprint": entry.get("fingerprint", entry.get("sha256")),
        }
        for entry in own
    ]


def _lineage(entries: _Entries, run: str) -> list[str]:
    """The run, the runs whose releases it treated as public, and those that these treated as public."""
    found = [run]
    for one in found:
        built_on = (public.get("release") for public in _public_inputs(entries, one))
        found += [other for other in built_on if other is not None and other not in found]
    return found


def _charged_runs(entries: _Entries, runs: Sequence[str] | None = None) -> list[str]:
    """The runs that were charged, of these or of all, the first one first.

    What a release of another ledger has spent is charged to the run that builds on it; it is a run of its own.
    """
    charges = (entry for entry in entries if entry["kind"] == "charge" and (runs is None or entry["run"] in runs))
    return list(dict.fromkeys(entry.get("from", entry["run"]) for entry in charges))


def _charged_events(entries: _Entries, run: str | None = None) -> tuple[Event, ...]:
    """Everything charged, or one run's part, equal mechanisms added up."""
    charges = (entry for entry in entries if entry["kind"] == "charge" and run in (None, entry["run"]))
    return merged(event_from_json(entry["event"]) for entry in charges)


def committed_events(entries: _Entries, run: str) -> tuple[Event, ...]:
    """The whole plan of a run, asked or not, and what was charged beside or beyond it.

    Whether a run asks its later queries may depend on the earlier answers: a method may stop early, and so may the
    person who reads a checkpoint. An ε of the queries that were asked would be chosen after the answers; that of the
    plan was fixed before. A run of version 0.1.0 has no plan on its ledger.
    """
    entry = next((entry for entry in entries if entry["kind"] == "run" and entry["run"] == run), {})
    planned = merged(event_from_json(event) for event in entry.get("plan", {}).get("events", ()))
    found = {_once(event): event for event in planned}
    for event in _charged_events(entries, run):
        known = found.get(_once(event))
        if known is None or _steps(event) > _steps(known):
            found[_once(event)] = event
    return merged(found.values())


def _once(event: Event) -> Event:
    return event if isinstance(event, RawAccess) else event.times(1)


def _steps(event: Event) -> int:
    return 1 if isinstance(event, RawAccess) else event.steps


_UNBINDING = frozenset({"ledger", "key", "run", "seeded", "own code"})
"""Kinds of entries that no answer follows from."""


class RunRefused(RuntimeError):
    """A run cannot go on with this ledger: it is unknown here, has ended, or used answers that were not charged."""


class Ledger:
    """Spending on one collection, over any number of runs, under one limit.

    ``Ledger(path, limit)`` opens or creates the file and holds its lock until ``close`` (or the process's death).
    ``Ledger(None, limit)`` lives in memory. ``Ledger.read(path)`` looks without writing and takes no lock.
    """

    def __init__(self, path: str | Path | None, limit: AnyBudget | None = None) -> None:
        self._open(Journal(path, write=True))
        if not self._entries:
            if limit is None:
                self.close()
                raise ValueError("a new ledger needs a limit: Budget(epsilon, delta), or NoGuarantee()")
            self.limit = limit
            first = {"kind": "ledger", "version": 3, "id": secrets.token_hex(16), "limit": limit.to_json()}
            self._journal.append({**first, "order": _order(limit)})

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """The ledger as it stands, verified, for reading only."""
        if not Path(path).exists():
            raise FileNotFoundError(f"there is no ledger at {path}")
        ledger = cls.__new__(cls)
        ledger._open(Journal(path, write=False))
        if not ledger._entries:
            raise LedgerDamaged(f"{path} is empty")
        return ledger

    @staticmethod
    def discard_if_unused(path: Path) -> bool:
        """Remove a ledger that holds no charge and that nobody writes; returns whether there is no ledger now.

        Such a ledger binds nobody: the next training may choose another limit, unit or δ.
        """
        if not path.exists():
            return True
        lock = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kinds = {json.loads(line)["kind"] for line in path.read_bytes().splitlines()}
            if not kinds <= _UNBINDING:
                return False
            # The head first: a ledger of one entry needs none, and a head without its ledger would count as a loss.
            path.with_name(path.name + ".head").unlink(missing_ok=True)
            path.unlink()
            return True
        except (BlockingIOError, ValueError, KeyError, TypeError):
            return False
        finally:
            os.close(lock)

    @classmethod
    def copied(cls, entries: Sequence[dict[str, Any]]) -> Ledger:
        """A ledger in memory with these entries: what other processes than the writing one count with."""
        journal = Journal(None, write=True)
        for entry in entries:
            journal.append(entry)
        ledger = cls.__new__(cls)
        ledger._open(journal)
        return ledger

    def entries(self) -> list[dict[str, Any]]:
        """Everything that was written, in order."""
        return list(self._entries)

    def until(self, length: int) -> Ledger:
        """The ledger as it was when it had this many entries."""
        return Ledger.copied(self._entries[:length])

    def lines(self) -> Iterator[tuple[dict[str, Any], bytes, str]]:
        """Each entry, its line as it was hashed, and the hash of everything up to it."""
        for number, entry in enumerate(self._entries, start=1):
            yield entry, line_of(entry), self._journal.hashes[number]

    def _open(self, journal: Journal) -> None:
        self.path = journal.path
        self._journal, self._entries = journal, journal.entries
        self._reserved: list[tuple[str, Charged]] = []
        self._groups: dict[tuple[str, str, str], Any] = {}
        self._ended = {entry["run"] for entry in self._entries if entry["kind"] == "end"}
        if self._entries:
            if self._entries[0].get("kind") != "ledger":
                self.close()
                raise LedgerDamaged(f"{self.path}: the first entry is not a ledger's")
            self.limit = budget_from_json(self._entries[0]["limit"])

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lock; what was reserved and not spent is free again."""
        self._reserved.clear()
        self._journal.close()

    # What has been spent

    @property
    def id(self) -> str:
        """Random for every ledger; of one written by version 0.1.0, the hash of its first entry."""
        return str(self._entries[0].get("id") or chained(ORIGIN, self._entries[0]))

    @property
    def head(self) -> tuple[int, str]:
        """Number of entries and the last one's hash, which a release keeps, so that a removed tail is noticed."""
        return self._journal.head

    def holds(self, length: int, digest: str) -> bool:
        """Whether this was the ledger's head at some time, as a release or a checkpoint remembers it."""
        return self._journal.holds(length, digest)

    def runs(self) -> list[dict[str, Any]]:
        """Each run's id, method, variant, whether it is seeded, and its start."""
        return [
            {key: entry[key] for key in ("run", "method", "variant", "seeded", "time")}
            for entry in self._entries
            if entry["kind"] == "run"
        ]

    def run_entry(self, run: str) -> dict[str, Any]:
        """What was written down when the run started; refuses a run that this ledger does not know."""
        if (entry := self._started(run)) is not None:
            return entry
        raise RunRefused(
            f"run {run} is not on this ledger, so that its answers were charged elsewhere or never. "
            "Resume it with the ledger it was started with, or start a new run"
        )

    def knows(self, run: str) -> bool:
        """Whether the run was started on this ledger."""
        return self._started(run) is not None

    def _started(self, run: str) -> dict[str, Any] | None:
        return next((entry for entry in self._of(run) if entry["kind"] == "run"), None)

    def seeded(self, run: str) -> bool:
        """Whether any part of the run drew its noise from a fixed seed."""
        return any(entry["kind"] == "seeded" or entry.get("seeded") for entry in self._of(run))

    def key_kept(self, run: str) -> bool:
        """Whether the custodian kept the run's key, with which its answers can be computed again."""
        return bool((self._started(run) or {}).get("key_kept"))

    def own_code(self, run: str) -> set[str]:
        """Names of classes outside the trusted base that answered queries of the run."""
        return {entry["name"] for entry in self._of(run) if entry["kind"] == "own code"}

    def ended(self, run: str) -> bool:
        """Whether the run has made its release."""
        return run in self._ended

    def public_inputs(self, run: str) -> list[dict[str, str]]:
        """Name, fingerprint and, of a synthetic one, the release of every collection the run treated as public."""
        return _public_inputs(self._entries, run)

    def release_events(self, run: str) -> tuple[Event, ...]:
        """What a run's release depends on: its own charges, and those of releases here that it treated as public."""
        return merged(event for one in _lineage(self._entries, run) for event in self.events(one))

    def committed_events(self, run: str) -> tuple[Event, ...]:
        """The same with whole plans: which of the planned queries were asked may itself depend on earlier answers."""
        lineage = _lineage(self._entries, run)
        return merged(event for one in lineage for event in committed_events(self._entries, one))

    def release_epsilon(self, run: str, delta: float) -> float:
        """The ε at ``delta`` of a run's release. A run that builds on a release was chosen after it: see ``filter``."""
        events = self.committed_events(run)
        return filtered_epsilon(events, self.order, delta) if self.adaptive(run) else epsilon(events, delta)

    def lineage(self, run: str) -> tuple[str, ...]:
        """The other runs, here or on other ledgers, that the run's release depends on."""
        return tuple(one for one in _lineage(self._entries, run) if one != run)

    def adaptive(self, run: str) -> bool:
        """Whether the run's release depends on charges of several runs, here or on other ledgers."""
        return len(_charged_runs(self._entries, _lineage(self._entries, run))) > 1

    def events(self, run: str | None = None) -> tuple[Event, ...]:
        """Everything charged, or one run's part, equal mechanisms added up."""
        return _charged_events(self._entries, run)

    def spent(self) -> float:
        """The ε of everything charged so far, at the limit's δ; infinite after raw access."""
        return self._total(())

    def charged_steps(self, run: str, name: str) -> int:
        """How many steps of this event the run has paid for."""
        return sum(e.steps for e in self.events(run) if isinstance(e, SubsampledGaussian) and e.name == name)

    def _of(self, run: str) -> list[dict[str, Any]]:
        return [entry for entry in self._entries if entry.get("run") == run]

    def _total(self, reserved: Sequence[tuple[str, Charged]]) -> float:
        """The ε with these reservations: the accountant's for a single run, the filter's for several."""
        events = [*self.events(), *(event for _, event in reserved)]
        if len(self._runs(reserved)) <= 1 or not isinstance(self.limit, Budget):
            return epsilon(events, self.limit.delta)
        return filtered_epsilon(events, self.order, self.limit.delta)

    def _runs(self, reserved: Sequence[tuple[str, Charged]]) -> list[str]:
        """The runs with charges or reservations, the first one first."""
        return list(dict.fromkeys([*_charged_runs(self._entries), *(run for run, _ in reserved)]))

    @property
    def order(self) -> int:
        """Of the Rényi filter; fixed when the ledger is created."""
        return int(self._entries[0].get("order") or filter_order(self.limit.epsilon, self.limit.delta))

    # Spending

    def start_run(
        self, *, method: str, variant: str, seeded: bool, facts: Mapping[str, Any] | None = None, run: str | None = None
    ) -> str:
        """A new run with a random id, by default one that is drawn here. ``facts`` are public: parameters, plan."""
        run = run or new_run_id()
        entry = {"kind": "run", "run": run, "method": method, "variant": variant, "seeded": seeded, "time": _now()}
        self._journal.append({**entry, **(facts or {})})
        return run

    def reserve(self, run: str, events: Sequence[Charged]) -> None:
        """Make room for ``events``, or refuse.

        Guarantee. After this, charging them cannot exceed the limit.
        """
        wanted = [*self._reserved, *((run, event) for event in events)]
        if isinstance(self.limit, Budget) and (total := self._total(wanted)) > self.limit.epsilon:
            raise BudgetExceeded(
                f"refused: with this, ε would be {total:.4g} at δ {self.limit.delta:g}; the ledger's limit is "
                f"{self.limit.epsilon:g} and {self.spent():.4g} is spent"
            )
        if isinstance(self.limit, Budget) and len(runs := self._runs(wanted)) > 1:
            check_first_plan(committed_events(self._entries, runs[0]), self.order, self.limit)
        self._reserved = wanted

    def charge(
        self, run: str, event: Charged, *, source: str | None = None, answered: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Write a reserved spend to the disk before its noise is drawn; ``source`` has spent it on another ledger.

        Guarantee. When this returns, the entry is on the disk, and what is charged was reserved.

        ``answered`` describes the answers that were given since the last charge, see ``mechanism.described``.
        """
        for index, (owner, reserved) in enumerate(self._reserved):
            if owner == (source or run) and reserved.times(1) == event.times(1) and reserved.steps >= event.steps:
                left = reserved.steps - event.steps
                self._reserved[index : index + 1] = [(owner, reserved.times(left))] if left else []
                break
        else:
            raise BudgetExceeded(f"refused: {event.name!r} has no reservation left in this ledger")
        if self.ended(run):
            raise RunRefused(f"run {run} has ended; a new query needs a new run")
        entry = {"kind": "charge", "run": run, "event": event.to_json(), **self._answers(run, answered)}
        self._journal.append({**entry, **({"from": source} if source else {})})

    def _answers(self, run: str, answered: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The answers for an entry; the groups of a block are written where they are new."""
        found = []
        for answer in answered:
            key = (run, answer["event"], answer["block"])
            kept = {name: value for name, value in answer.items() if name != "groups"}
            if self._groups.get(key) != answer["groups"]:
                self._groups[key] = kept["groups"] = answer["groups"]
            found.append(kept)
        return {"answers": found} if found else {}

    def note_raw_access(self, run: str, event: RawAccess) -> None:
        """Raw access can only be noted where no guarantee was ever given."""
        if isinstance(self.limit, Budget):
            raise BudgetExceeded(
                f"refused: raw access costs ε = ∞ and this ledger guarantees ε ≤ {self.limit.epsilon:g}; "
                "an algorithm that needs the raw records runs only under NoGuarantee()"
            )
        self._journal.append({"kind": "charge", "run": run, "event": event.to_json()})

    def note_seed(self, run: str) -> None:
        """From here on the run's noise is repeatable, and the run is never certified."""
        self._journal.append({"kind": "seeded", "run": run, "time": _now()})

    def note_own_code(self, run: str, name: str) -> None:
        """A class outside the trusted base takes part in the run's answers, and the run is never certified."""
        if name not in self.own_code(run):
            self._journal.append({"kind": "own code", "run": run, "name": name})

    def note_public(self, run: str, public: PublicInput) -> None:
        """The run treats this collection as public; of a synthetic one, the spending is charged unless it is here."""
        before = {one["name"]: one["fingerprint"] for one in self.public_inputs(run)}
        fingerprint = public.fingerprint or self._fingerprint(public.sha256)
        if before.get(public.name) == fingerprint:
            return
        if public.name in before:
            raise RunRefused(f"the public collection {public.name!r} has changed since the run was started")
        if public.unit not in (None, self.limit.unit):
            raise ValueError(
                f"the guarantee of {public.name!r} is per {public.unit} and this ledger counts per {self.limit.unit}; "
                "the two cannot be added up"
            )
        if public.release is not None and self.knows(public.release):
            self._check_own_release(public, public.release)
        elif public.release is not None:
            # Under names of their own, so that they are not taken for answers to the run's queries.
            events = [replace(event, name=f"{public.name}: {event.name}") for event in public.events]
            # As a run of its own: this one was planned when that release could be read.
            self.reserve(public.release, events)
            for event in events:
                self.charge(run, event, source=public.release)
        # The note comes last: after a crash in between, the spending is charged again rather than not at all.
        entry = {"kind": "public", "run": run, "name": public.name, "fingerprint": fingerprint}
        if public.release:
            here = self.knows(public.release)
            entry |= {"release": public.release, "proof": "this ledger" if here else public.proof}
        self._journal.append(entry)

    def _check_own_release(self, public: PublicInput, release: str) -> None:
        """A card that names a run of this ledger is believed if it lists what this ledger has charged to that run."""
        if self.seeded(release) or self.own_code(release):
            raise ValueError(f"{public.name!r} is from run {release}, which this ledger says has no guarantee")
        if set(public.events) not in (set(self.committed_events(release)), set(self.release_events(release))):
            raise ValueError(f"the card of {public.name!r} lists other events than this ledger charged to {release}")

    def share_key(self, other: Ledger) -> None:
        """Fingerprints on this ledger are those of ``other``: for the trials of a selection."""
        self._journal.append({"kind": "key", "key": other._key()})

    def _fingerprint(self, sha256: str) -> str:
        """Keyed, so that who has a ledger's transcript cannot try out what a collection may hold."""
        return hashlib.blake2b(sha256.encode(), key=bytes.fromhex(self._key()), digest_size=32).hexdigest()

    def _key(self) -> str:
        """A secret of this ledger, which no transcript holds."""
        known = next((str(entry["key"]) for entry in self._entries if entry["kind"] == "key"), None)
        if known is None:
            known = secrets.token_hex(32)
            self._journal.append({"kind": "key", "key": known})
        return known

    def end_run(
        self, run: str, *, files: Mapping[str, str] | None = None, answered: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """The run has made its release; it can neither be charged nor resumed again.

        ``files`` has the hashes of the card and of the weights. The number of the run's entries is written down, so
        that a transcript cannot leave one of them out.
        """
        entry = {"kind": "end", "run": run, "time": _now(), "entries": len(self._of(run)) + 1}
        self._journal.append({**entry, **({"files": dict(files)} if files else {}), **self._answers(run, answered)})
        self._ended.add(run)

    def released_files(self, run: str) -> dict[str, str]:
        """The hashes of the card and the weights of the run's release; empty before version 0.3.0."""
        return next((dict(entry.get("files", {})) for entry in self._of(run) if entry["kind"] == "end"), {})


def new_run_id() -> str:
    """128 random bits."""
    return secrets.token_hex(16)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _order(limit: AnyBudget) -> int | None:
    return filter_order(limit.epsilon, limit.delta) if isinstance(limit, Budget) else None
