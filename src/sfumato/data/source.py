"""What every format offers: a stream of records, the label set it declares, and what it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from sfumato.data.decode import Frame


@dataclass(frozen=True)
class Choice:
    """What the user said about the collection: where the pictures, labels and persons are, and what counts."""

    image_column: str | None = None
    label_column: str | None = None
    person_column: str | None = None
    labelled: bool = True
    classes: tuple[str, ...] | None = None
    unlabelled: Literal["refuse", "leave out"] = "refuse"
    split: str = "train"


@dataclass(frozen=True)
class Record:
    """One picture on its way in. ``load`` decodes it, or raises BadInput when this record alone is bad."""

    load: Callable[[Frame], np.ndarray]
    label: int | str | None
    person: int | str | None
    name: str


class Source(Protocol):
    """A collection in some format. ``classes`` is the label set the collection declares, if it does."""

    classes: tuple[str, ...] | None

    def fingerprint(self) -> str:
        """Changes when a file of the collection changes."""

    def records(self) -> Iterator[Record]:
        """One pass; memory stays flat. Raises BadInput when the collection as a whole is malformed."""


def stamp(files: Sequence[Path]) -> str:
    """A fingerprint of files by place, size and times."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        found = file.stat()
        part = f"{file.resolve()}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}\0{found.st_ino}\0"
        digest.update(part.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
