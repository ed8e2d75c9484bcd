"""What every format provides: a stream of records with labels and a fingerprint; and how records are taken from it."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, NoPerson, Unavailable
from sfumato.data.remote import RemoteFile
from sfumato.files import write_json

if TYPE_CHECKING:
    from sfumato.data.reader import Reading


@dataclass(frozen=True)
class Selection:
    """Where in a collection the images, labels and persons are, and which of them are read."""

    image_column: str | None = None
    label_column: str | None = None
    person_column: str | None = None
    person_file: Path | None = None
    person_pattern: str | None = None
    labelled: bool = True
    classes: tuple[str, ...] | None = None
    unlabelled: Literal["refuse", "leave out"] = "refuse"
    missing_persons: Literal["refuse", "leave out"] = "refuse"
    split: str = "train"


@dataclass(frozen=True)
class Record:
    """One image that is being read.

    Attributes:
        load: Decodes the image; raises BadInput when this record alone is bad.
        label: The label as the collection has it.
        person: The person as the collection has it.
        name: What an internal error calls the record.
        file: The path of the image inside the collection, where each image is a file.
    """

    load: Callable[[ImageTransform], np.ndarray]
    label: int | str | None
    person: int | str | None
    name: str
    file: str | None = None


class Source(Protocol):
    """A collection in some format. ``classes`` is the label set that the collection declares, if it does."""

    classes: tuple[str, ...] | None

    def fingerprint(self) -> str:
        """Changes when a file of the collection changes."""

    def records(self) -> Iterator[Record]:
        """One pass in constant memory. Raises BadInput when the collection as a whole is malformed."""

    def count(self) -> int | None:
        """The number of records, where it is known before they are read and a part of them can be read alone."""

    def part(self, start: int, stop: int) -> Iterator[Record]:
        """The records from number ``start`` on, up to ``stop``."""


def files_fingerprint(files: Iterable[Path | RemoteFile]) -> str:
    """A fingerprint of files by path, size and times, or by what their store says about the version."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        if isinstance(file, RemoteFile):
            digest.update(f"{file.place.address}\0{file.path}\0{file.size}\0{file.version}\0".encode())
            continue
        found = file.stat()
        part = f"{file.resolve()}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}\0{found.st_ino}\0"
        digest.update(part.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


class Labels:
    """The label set of a collection, and the number of each record's label."""

    def __init__(
        self, source: Source, selection: Selection, *, infer: bool, classes: tuple[str, ...] | None = None
    ) -> None:
        self._labelled = selection.labelled
        declared = classes or selection.classes or source.classes
        if not selection.labelled:
            declared = ("all",)
        elif declared is None and infer:
            declared = _inferred(source)
        elif declared is None:
            raise BadInput(
                "the label set is public and must be declared",
                advice="Declare it with classes=10 (--classes 10) or classes=('cat', 'dog') (--classes cat,dog), or "
                "read without labels by labelled=False (--no-labels).",
            )
        if not declared or len(set(declared)) != len(declared):
            raise BadInput("the label set must name each class once", advice="Check classes=... (--classes).")
        self.classes: tuple[str, ...] = declared
        self._numbers = {name: number for number, name in enumerate(declared)}

    def missing(self, record: Record) -> bool:
        """Null, or an empty string where that is no class."""
        return self._labelled and (record.label is None or (record.label == "" and "" not in self._numbers))

    def number(self, record: Record) -> int:
        """The number of the record's label in the label set."""
        if not self._labelled:
            return 0
        label = record.label
        if self.missing(record):
            raise BadInput(
                "an image has no label",
                advice='Label it, leave such images out with unlabelled="leave out" (--missing-labels "leave out"), or '
                "read without labels (labelled=False, --no-labels).",
                detail=record.name,
            )
        number = self._numbers.get(label, -1) if isinstance(label, str) else label
        if number is None or not 0 <= number < len(self.classes):
            raise BadInput(
                "a label is not in the declared label set",
                advice=f"Labels are one of the {len(self.classes)} declared names or a number from 0 to "
                f"{len(self.classes) - 1}. Declare the right classes, or use skip_bad=True (--skip-bad).",
                detail=f"{record.name}: {label!r}",
            )
        return number


def _inferred(source: Source) -> tuple[str, ...]:
    """The label set found in a PUBLIC collection: a pass over the labels alone."""
    found = {record.label for record in source.records()}
    names = sorted(label for label in found if isinstance(label, str) and label)
    highest = max((label for label in found if isinstance(label, int)), default=-1)
    if (names and highest >= 0) or highest >= 1 << 16:
        raise BadInput(
            "labels are neither names nor small numbers", advice="Declare the label set with classes=... (--classes)."
        )
    return tuple(names) or tuple(str(number) for number in range(highest + 1))


Person = TypeVar("Person", contravariant=True)

NAMED_AT_MOST = 1000
"""Records that were left out are named up to this number."""


class Rows(Protocol[Person]):
    """Takes decoded rows; ``shape`` is that of the first image."""

    shape: tuple[int, ...] | None

    def add(self, pixels: np.ndarray, *, label: int, person: Person) -> None:
        """Keep one row."""


def gather(
    records: Iterable[Record],
    reading: Reading,
    labels: Labels,
    person_of: Callable[[Record], Person],
    rows: Rows[Person],
) -> list[str]:
    """Decode every record; returns which were left out as bad, and why."""
    skipped: list[str] = []
    skip_unlabelled = reading.selection.unlabelled == "leave out"
    for record in records:
        if skip_unlabelled and labels.missing(record):
            continue
        try:
            pixels = record.load(reading.transform)
            label, person = labels.number(record), person_of(record)
        except BadInput as error:
            if isinstance(error, NoPerson) and reading.selection.missing_persons == "leave out":
                continue
            if isinstance(error, Unavailable | NoPerson) or not reading.skip_bad:
                raise
            if len(skipped) < NAMED_AT_MOST:
                skipped.append(f"{record.name}: {error.rule}")
            continue
        check_shape(rows.shape, pixels.shape, record.name)
        rows.add(pixels, label=label, person=person)
    return skipped


def check_shape(before: tuple[int, ...] | None, now: tuple[int, ...], name: str) -> None:
    """Refuse images of several shapes."""
    if before not in (None, now):
        raise BadInput(
            "the images differ in size or colour",
            advice='Say what they are to become: size=32 (--size 32), colour="grey" (--colour grey) or "rgb".',
            detail=f"{name}: {now} after {before}",
        )


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
