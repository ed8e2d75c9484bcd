"""Collections whose images are single files: a list of them, made once, from which each part of a reading begins."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from sfumato.data.source import Record
from sfumato.files import write_json

Entry = tuple[Any, ...]
"""What a record is made from, in values that JSON has."""

_EVERY = 1 << 10  # entries between two whose places in the file are known


class Listing:
    """Entries in a file, one in a line; a part is found without a look at what stands before it."""

    def __init__(self, folder: Path) -> None:
        self._lines = folder / "entries"
        facts = json.loads(_facts(folder).read_text())
        self.count: int = facts["count"]
        self._places: list[int] = facts["places"]

    @classmethod
    def kept(cls, folder: Path, entries: Iterable[Entry]) -> Listing:
        """The listing that was made in this folder before, or one of these entries; in constant memory."""
        if not _facts(folder).exists():
            count, places = 0, []
            handle = os.open(folder / "entries", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(handle, "wb", buffering=1 << 20) as file:
                for entry in entries:
                    if count % _EVERY == 0:
                        places.append(file.tell())
                    file.write(json.dumps(entry).encode() + b"\n")
                    count += 1
            # Written last: where it stands, the entries are complete.
            write_json(_facts(folder), {"count": count, "places": places}, private=True)
        return cls(folder)

    def part(self, start: int, stop: int) -> Iterator[Entry]:
        """The entries from number ``start`` on, up to ``stop``."""
        stop = min(stop, self.count)
        if start >= stop:
            return
        with self._lines.open("rb") as file:
            file.seek(self._places[start // _EVERY])
            for line in islice(file, start % _EVERY, stop - start // _EVERY * _EVERY):
                yield tuple(json.loads(line))


def _facts(folder: Path) -> Path:
    return folder / "listing.json"


class ListedSource(ABC):
    """A collection whose images are single files."""

    classes: tuple[str, ...] | None = None
    _listing: Listing | None = None

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when a file of the collection changes."""

    @abstractmethod
    def count(self) -> int | None:
        """The number of records."""

    @abstractmethod
    def entries(self, scratch: Path | None = None) -> Iterator[Entry]:
        """All entries in their order, in constant memory; ``scratch`` is a folder for temporary files."""

    @abstractmethod
    def records_of(self, entries: Iterable[Entry]) -> Iterator[Record]:
        """The records of these entries."""

    def records(self) -> Iterator[Record]:
        return self.records_of(self.entries())

    def use_listing(self, folder: Path) -> int:
        """Take parts from the listing in this folder, which is made if it is not there; returns their number."""
        self._listing = Listing.kept(folder, self.entries(folder))
        return self._listing.count

    def part(self, start: int, stop: int) -> Iterator[Record]:
        entries = islice(self.entries(), start, stop) if self._listing is None else self._listing.part(start, stop)
        return self.records_of(entries)
