"""What every format provides: a stream of records with labels and a fingerprint; and how records are taken from it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, NoPerson, Unavailable

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


def files_fingerprint(files: Iterable[Path]) -> str:
    """A fingerprint of files by path, size and times."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
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


NAMED_AT_MOST = 1000
"""Records that were left out are named up to this number."""

_THREADS = min(8, len(os.sched_getaffinity(0)))  # Pillow decodes without the interpreter's lock
_AT_ONCE = 16  # records of one task


class Rows(Protocol):
    """Takes decoded rows; ``shape`` is that of the first image."""

    shape: tuple[int, ...] | None

    def add(self, pixels: np.ndarray, *, label: int, person: int | None) -> None:
        """Keep one row."""


def gather(
    records: Iterable[Record],
    reading: Reading,
    labels: Labels,
    person_of: Callable[[Record], int | None],
    rows: Rows,
) -> list[str]:
    """Decode every record; returns which were left out as bad, and why."""
    skipped: list[str] = []
    if reading.selection.unlabelled == "leave out":
        records = (record for record in records if not labels.missing(record))
    for record, pixels in decoded(records, reading.transform):
        try:
            if isinstance(pixels, BadInput):
                raise pixels
            label, person = labels.number(record), person_of(record)
        except BadInput as error:
            if isinstance(error, NoPerson) and reading.selection.missing_persons == "leave out":
                continue
            if isinstance(error, Unavailable | NoPerson) or not reading.skip_bad:
                raise
            if len(skipped) < NAMED_AT_MOST:
                skipped.append(f"{record.name}: {error.rule}")
            continue
        if rows.shape not in (None, pixels.shape):
            raise BadInput(
                "the images differ in size or colour",
                advice='Say what they are to become: size=32 (--size 32), colour="grey" (--colour grey) or "rgb".',
                detail=f"{record.name}: {pixels.shape} after {rows.shape}",
            )
        rows.add(pixels, label=label, person=person)
    return skipped


def decoded(records: Iterable[Record], transform: ImageTransform) -> Iterator[tuple[Record, np.ndarray | BadInput]]:
    """Every record, in their order, with its pixels or with what is wrong with it; decoded by several threads."""

    def decode(block: list[Record]) -> list[tuple[Record, np.ndarray | BadInput]]:
        found: list[tuple[Record, np.ndarray | BadInput]] = []
        for record in block:
            try:
                found.append((record, record.load(transform)))
            except BadInput as error:
                found.append((record, error))
        return found

    records = iter(records)
    with ThreadPoolExecutor(_THREADS) as pool:
        while many := list(islice(records, _AT_ONCE * _THREADS)):
            blocks = [many[start : start + _AT_ONCE] for start in range(0, len(many), _AT_ONCE)]
            for block in pool.map(decode, blocks):
                yield from block
