"""The ledger: everything that was spent on one private collection, over any number of runs, under one limit.

It refuses a run before the limit would be exceeded, and it is charged before noise is drawn.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.privacy import spending
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.budget import AnyBudget, Budget, BudgetExceeded, budget_from_json
from sfumato.privacy.events import Charged, Event, RawAccess, SubsampledGaussian, merged
from sfumato.privacy.filter import check_first_plan, filter_order, filtered_epsilon
from sfumato.privacy.journal import ORIGIN, Journal, LedgerDamaged, chained, line_of

if TYPE_CHECKING:
    from sfumato.privacy.interfaces import PublicInput


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
        return spending.public_inputs(self._entries, run)

    def release_events(self, run: str) -> tuple[Event, ...]:
        """What a run's release depends on: its own charges, and those of releases here that it treated as public."""
        return merged(event for one in spending.lineage(self._entries, run) for event in self.events(one))

    def committed_events(self, run: str) -> tuple[Event, ...]:
        """The same with whole plans: which of the planned queries were asked may itself depend on earlier answers."""
        lineage = spending.lineage(self._entries, run)
        return merged(event for one in lineage for event in spending.committed_events(self._entries, one))

    def release_epsilon(self, run: str, delta: float) -> float:
        """The ε at ``delta`` of a run's release. A run that builds on a release was chosen after it: see ``filter``."""
        events = self.committed_events(run)
        return filtered_epsilon(events, self.order, delta) if self.adaptive(run) else epsilon(events, delta)

    def lineage(self, run: str) -> tuple[str, ...]:
        """The other runs, here or on other ledgers, that the run's release depends on."""
        return tuple(one for one in spending.lineage(self._entries, run) if one != run)

    def adaptive(self, run: str) -> bool:
        """Whether the run's release depends on charges of several runs, here or on other ledgers."""
        return len(spending.charged_runs(self._entries, spending.lineage(self._entries, run))) > 1

    def events(self, run: str | None = None) -> tuple[Event, ...]:
        """Everything charged, or one run's part, equal mechanisms added up."""
        return spending.charged_events(self._entries, run)

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
        return list(dict.fromkeys([*spending.charged_runs(self._entries), *(run for run, _ in reserved)]))

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
        """Make room for ``events``, or refuse: after this, charging them cannot exceed the limit."""
        wanted = [*self._reserved, *((run, event) for event in events)]
        if isinstance(self.limit, Budget) and (total := self._total(wanted)) > self.limit.epsilon:
            raise BudgetExceeded(
                f"refused: with this, ε would be {total:.4g} at δ {self.limit.delta:g}; the ledger's limit is "
                f"{self.limit.epsilon:g} and {self.spent():.4g} is spent"
            )
        if isinstance(self.limit, Budget) and len(runs := self._runs(wanted)) > 1:
            check_first_plan(spending.committed_events(self._entries, runs[0]), self.order, self.limit)
        self._reserved = wanted

    def charge(
        self, run: str, event: Charged, *, source: str | None = None, answered: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Write a reserved spend to the disk before its noise is drawn; ``source`` has spent it on another ledger.

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
