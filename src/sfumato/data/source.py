"""What every format provides: a stream of records, the label set it declares, and a fingerprint of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.remote import RemoteFile


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
