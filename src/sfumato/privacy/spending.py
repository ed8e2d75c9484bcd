"""What runs were planned to spend and have spent, read from the entries of a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sfumato.privacy.events import Event, RawAccess, event_from_json, merged

Entries = Sequence[Mapping[str, Any]]


def public_inputs(entries: Entries, run: str) -> list[dict[str, str]]:
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


def lineage(entries: Entries, run: str) -> list[str]:
    """The run, the runs whose releases it treated as public, and those that these treated as public."""
    found = [run]
    for one in found:
        built_on = (public.get("release") for public in public_inputs(entries, one))
        found += [other for other in built_on if other is not None and other not in found]
    return found


def charged_runs(entries: Entries, runs: Sequence[str] | None = None) -> list[str]:
    """The runs that were charged, of these or of all, the first one first.

    What a release of another ledger has spent is charged to the run that builds on it; it is a run of its own.
    """
    charges = (entry for entry in entries if entry["kind"] == "charge" and (runs is None or entry["run"] in runs))
    return list(dict.fromkeys(entry.get("from", entry["run"]) for entry in charges))


def charged_events(entries: Entries, run: str | None = None) -> tuple[Event, ...]:
    """Everything charged, or one run's part, equal mechanisms added up."""
    charges = (entry for entry in entries if entry["kind"] == "charge" and run in (None, entry["run"]))
    return merged(event_from_json(entry["event"]) for entry in charges)


def committed_events(entries: Entries, run: str) -> tuple[Event, ...]:
    """The whole plan of a run, asked or not, and what was charged beside or beyond it.

    Whether a run asks its later queries may depend on the earlier answers: a method may stop early, and so may the
    person who reads a checkpoint. An ε of the queries that were asked would be chosen after the answers; that of the
    plan was fixed before. A run of version 0.1.0 has no plan on its ledger.
    """
    entry = next((entry for entry in entries if entry["kind"] == "run" and entry["run"] == run), {})
    planned = merged(event_from_json(event) for event in entry.get("plan", {}).get("events", ()))
    found = {_once(event): event for event in planned}
    for event in charged_events(entries, run):
        known = found.get(_once(event))
        if known is None or _steps(event) > _steps(known):
            found[_once(event)] = event
    return merged(found.values())


def _once(event: Event) -> Event:
    return event if isinstance(event, RawAccess) else event.times(1)


def _steps(event: Event) -> int:
    return 1 if isinstance(event, RawAccess) else event.steps
