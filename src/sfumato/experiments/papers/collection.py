"""The papers' collections: where they lie, and what stands in for one that is not at hand."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sfumato.experiments.papers.specification import built, hint, read_toml

FOLDER_VARIABLE = "SFUMATO_DATA"


@dataclass(frozen=True)
class Collection:
    """``train`` and ``test`` are places below the data folder; without ``test`` one place holds both splits."""

    name: str
    title: str
    records: int
    train: str = ""
    test: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    part_of: str = ""
    substitute: str = ""
    drawn: bool = False


@dataclass(frozen=True)
class LocatedDataset:
    """A collection that is there. ``asked`` is the one it stands in for, or itself."""

    collection: Collection
    asked: Collection
    train: Path
    test: Path | None
    given: bool
    """By the user's own path, so that nothing is known about how much of the collection it is."""

    @property
    def remark(self) -> str:
        """What differs from the paper's collection; empty when nothing is known to."""
        if self.asked.name != self.collection.name:
            return f"{self.asked.title} is not available; {self.collection.title} stands in"
        if self.collection.part_of and not self.given:
            return f"{self.collection.records:,} of {self.collection.part_of}"
        return ""


@cache
def collections() -> dict[str, Collection]:
    return {
        name: built(Collection, {"name": name, **table}, f"collections.toml, {name}")
        for name, table in read_toml("collections.toml").items()
    }


@dataclass(frozen=True)
class DatasetLocator:
    """The data folder, and collections that lie elsewhere."""

    folder: Path
    elsewhere: Mapping[str, tuple[Path, Path | None]]

    @classmethod
    def of(cls, words: Sequence[str]) -> DatasetLocator:
        """From ``FOLDER``, ``NAME=PATH`` or ``NAME=TRAIN,TEST`` as the command line gives them."""
        folder = Path(os.environ.get(FOLDER_VARIABLE, "data"))
        elsewhere: dict[str, tuple[Path, Path | None]] = {}
        for word in words:
            name, separator, place = word.partition("=")
            if not separator:
                folder = Path(word)
                continue
            if name not in collections():
                raise LookupError(f"--data {name}=…: there is no collection {name!r}; {hint(name, collections())}")
            train, _, test = place.partition(",")
            elsewhere[name] = (Path(train), Path(test) if test else None)
        return cls(folder, elsewhere)

    def find(self, name: str) -> LocatedDataset | None:
        """The collection, or what stands in for it; ``None`` when neither is there."""
        asked = collections()[name]
        for wanted in (asked, collections().get(asked.substitute)):
            place = None if wanted is None or wanted.drawn else self._place(wanted)
            if wanted is not None and place is not None:
                return LocatedDataset(wanted, asked, *place, given=wanted.name in self.elsewhere)
        return None

    def _place(self, wanted: Collection) -> tuple[Path, Path | None] | None:
        train, test = self.folder / wanted.train, self.folder / wanted.test if wanted.test else None
        if wanted.name in self.elsewhere:
            train, test = self.elsewhere[wanted.name]
            if not train.exists():
                raise FileNotFoundError(f"--data {wanted.name}={train}: there is no such file or folder")
        return (train, test) if train.exists() and (test is None or test.exists()) else None
