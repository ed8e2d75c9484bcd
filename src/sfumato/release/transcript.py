"""The part of a ledger that may be published with a release: its own run's lines, and the hashes of all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sfumato.files import write_file
from sfumato.privacy import Ledger
from sfumato.privacy.journal import line_hash

_NEVER = frozenset({"key"})


def write_transcript(ledger: Ledger, run: str, path: str | Path) -> Path:
    """Write the transcript of a run that has ended.

    It has the ledger's first line, which states the limit, and the lines of the run and of the runs that its release
    depends on, as they are; of every other line the hash, so that the chain can be followed. The verifier and
    ``docs/reference/file-formats.md`` say how it is read.
    """
    if ledger.entries()[0].get("version", 1) < 3:
        raise ValueError("a ledger that version 0.2.0 began has no transcript, since its chain needs every line")
    if not ledger.ended(run):
        raise ValueError(f"run {run} has not ended; a transcript is written with its release")
    shown, lines = {run, *ledger.lineage(run)}, []
    for entry, line, digest in ledger.lines():
        if entry["kind"] == "ledger" or (entry.get("run") in shown and entry["kind"] not in _NEVER):
            lines.append(line[:-1] + f', "hash": "{digest}"}}'.encode())
        else:
            lines.append(json.dumps({"withheld": line_hash(line)}).encode())
        if entry["kind"] == "end" and entry["run"] == run:
            break
    return write_file(path, b"\n".join(lines) + b"\n", private=False)


def run_of(folder: Path) -> str:
    """The run that a release's card names."""
    card: dict[str, Any] = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    return str(card["run"])
