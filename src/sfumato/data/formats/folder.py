"""An image folder: each class is a sub-folder, and the names of the folders are the public label set."""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import tempfile
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from sfumato.data.errors import BadInput
from sfumato.data.formats.dicom import PATIENT, is_dicom, patient
from sfumato.data.formats.files import is_ignored, load_image, real_path
from sfumato.data.listing import Entry, ListedSource
from sfumato.data.source import Record, Selection

Part = TypeVar("Part")

SPLITS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "testing": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
}
"""The part that a folder of this name is."""
# File names held in memory at once; those of a class with more are sorted by way of temporary files.
_NAMES_AT_ONCE = 100_000
_NAMED_AT_MOST = 10


def folder_splits(root: Path) -> dict[str, Path]:
    """The parts of a folder ``root/train/class/image``; empty where the sub-folders are classes."""
    found: dict[str, Path] = {}
    with os.scandir(root) as entries:
        for entry in entries:
            if is_ignored(entry.name):
                continue
            split = SPLITS.get(entry.name.lower())
            if split is None or split in found:
                return {}
            found[split] = Path(entry.path)
    # A class may be called "train": parts hold class folders, classes hold images.
    return found if all(path.is_dir() and _holds_folders(path) for path in found.values()) else {}


def _holds_folders(path: Path) -> bool:
    with os.scandir(path) as entries:
        return any(entry.is_dir() for entry in entries)


class Folder(ListedSource):
    """``root/class/image``, or ``root/train/class/image`` beside ``root/test``. Links may point inside only."""

    def __init__(self, root: Path, selection: Selection) -> None:
        parts = folder_splits(root) if selection.labelled else {}
        self.root = chosen_split(parts, selection.split) if parts else root
        self._selection = selection
        folders = _folders(self.root)
        if selection.labelled:
            check_layout(folders, _loose(self.root))
        for name in folders:
            check_name(name)
            real_path(str(self.root), os.path.join(self.root, name))
        self._folders = sorted(folders)
        if selection.labelled:
            # A class that has no image in one part is a class of the collection all the same.
            every = {name for part in parts.values() for name in _folders(part)} | set(folders)
            self.classes = declared_classes(tuple(sorted(every)), selection)
        self._places = self._folders if selection.labelled else [*self._folders, ""]

    def _entries(self, place: str) -> Iterator[os.DirEntry[str]]:
        with os.scandir(os.path.join(self.root, place)) as entries:
            for entry in entries:
                if not (is_ignored(entry.name) or (place == "" and entry.is_dir())):
                    yield entry

    def fingerprint(self) -> str:
        """Of the names, sizes and times of all files."""
        total = 0
        for place in self._places:
            for entry in self._entries(place):
                found = entry.stat(follow_symlinks=False)
                part = f"{place}/{entry.name}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}"
                # A sum does not depend on the order in which the system lists files.
                digest = hashlib.blake2b(part.encode("utf-8", "surrogateescape"), digest_size=16).digest()
                total = (total + int.from_bytes(digest, "little")) % 2**128
        return f"{os.path.realpath(self.root)}\0{total:x}"

    def count(self) -> int | None:
        return sum(1 for place in self._places for _ in self._entries(place))

    def entries(self, scratch: Path | None = None) -> Iterator[Entry]:
        """Folder and name of every image, in the order of classes and names; hashes come first in a large class."""
        for place in self._places:
            count = sum(1 for _ in self._entries(place))
            names = (entry.name for entry in self._entries(place))
            for name in sorted(names) if count < _NAMES_AT_ONCE else _sorted_on_disk(names, count, scratch):
                yield place, name

    def records_of(self, entries: Iterable[Entry]) -> Iterator[Record]:
        for place, name in entries:
            relative = os.path.join(place, name)
            yield Record(
                load=partial(load_image, str(self.root), relative),
                label=place if self._selection.labelled else None,
                person=self._patient(relative),
                name=relative,
                file=relative,
            )

    def _patient(self, relative: str) -> str | None:
        if self._selection.person_column != PATIENT:
            return None
        path = os.path.join(self.root, relative)
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return patient(file, name=relative) if is_dicom(file) else None


def _folders(root: Path) -> list[str]:
    """The names of the folders in ``root``."""
    with os.scandir(root) as entries:
        return [entry.name for entry in entries if not is_ignored(entry.name) and entry.is_dir()]


def _loose(root: Path) -> list[str]:
    """The first names of files in ``root``."""
    with os.scandir(root) as entries:
        names = (entry.name for entry in entries if not (is_ignored(entry.name) or entry.is_dir()))
        return heapq.nsmallest(_NAMED_AT_MOST, names)


def chosen_split(parts: Mapping[str, Part], split: str) -> Part:
    """The part asked for; one that is not there is refused."""
    if split not in parts:
        raise BadInput(
            f"the collection has no split called {split!r}",
            advice=f"Choose one with --split (split=...): {', '.join(sorted(parts))}.",
        )
    return parts[split]


def check_layout(folders: Sequence[str], loose: Sequence[str]) -> None:
    """Refuse files beside the class folders, and a folder without any."""
    if loose:
        raise BadInput(
            "files lie beside the class folders",
            advice="Put every image into the folder of its class, or read without labels (labelled=False, "
            "--no-labels).",
            detail=", ".join(sorted(loose)[:_NAMED_AT_MOST]),
        )
    if not folders:
        raise BadInput(
            "the folder has no class folders in it", advice="Make one sub-folder for each class, even an empty one."
        )


def declared_classes(folders: tuple[str, ...], selection: Selection) -> tuple[str, ...]:
    """The label set of a folder with these class folders: the declared one, if one was declared."""
    if selection.classes is None:
        return folders
    undeclared = sorted(set(folders) - set(selection.classes))
    if undeclared:
        raise BadInput(
            "a class folder is not in the declared label set",
            advice="Declare it with --classes (classes=...), rename the folder or remove it.",
            detail=", ".join(undeclared[:10]),
        )
    return selection.classes


def _sorted_on_disk(names: Iterable[str], count: int, scratch: Path | None) -> Iterator[str]:
    """Names by their hashes, and sorted where hashes are equal, with a part of them in memory at a time."""
    buckets: list[list[str]] = [[] for _ in range(1 + count // _NAMES_AT_ONCE)]
    with tempfile.TemporaryDirectory(prefix="names-", dir=scratch) as folder:
        files = [os.path.join(folder, str(number)) for number in range(len(buckets))]

        def flush() -> None:
            for file, bucket in zip(files, buckets, strict=True):
                with open(file, "a", encoding="ascii") as opened:
                    opened.writelines(json.dumps(name) + "\n" for name in bucket)
                bucket.clear()

        for number, name in enumerate(names, start=1):
            buckets[zlib.crc32(name.encode("utf-8", "surrogateescape")) % len(buckets)].append(name)
            if number % _NAMES_AT_ONCE == 0:
                flush()
        flush()
        for file in files:
            with open(file, encoding="ascii") as opened:
                yield from sorted(json.loads(line) for line in opened)


def check_name(name: str) -> None:
    """A class name is printed on cards and used as a folder name: any letters, nothing invisible."""
    bad = any(unicodedata.category(letter) in ("Cc", "Cs", "Cf", "Zl", "Zp") for letter in name)
    if bad or not name or "/" in name or name.startswith(".") or name != name.strip():
        raise BadInput(
            "a class has a name that no class folder can have",
            advice="Names may use any letters, but no control or invisible characters or line breaks, no slash, no "
            "blank at either end and no dot at the start. Rename it.",
            detail=repr(name),
        )
