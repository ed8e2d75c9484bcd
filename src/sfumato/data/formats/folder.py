"""An image folder: each class is a sub-folder, and the names of the folders are the public label set."""

from __future__ import annotations

import hashlib
import os
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from sfumato.data.errors import BadInput
from sfumato.data.formats.dicom import PATIENT, is_dicom, patient
from sfumato.data.formats.files import is_ignored, load_image, real_path
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
# File names held in memory at once; a class with more is walked in several passes.
_NAMES_AT_ONCE = 100_000


def folder_splits(root: Path) -> dict[str, Path]:
    """The parts of a folder ``root/train/class/image``; empty where the sub-folders are classes."""
    found = {entry.name: Path(entry.path) for entry in os.scandir(root) if not is_ignored(entry.name)}
    names = {name: SPLITS.get(name.lower()) for name in found}
    if not found or None in names.values() or len(set(names.values())) != len(names):
        return {}
    # A class may be called "train": parts hold class folders, classes hold images.
    if not all(path.is_dir() and any(child.is_dir() for child in path.iterdir()) for path in found.values()):
        return {}
    return {split: found[name] for name, split in names.items() if split is not None}


class Folder:
    """``root/class/image``, or ``root/train/class/image`` beside ``root/test``. Links may point inside only."""

    def __init__(self, root: Path, selection: Selection) -> None:
        parts = folder_splits(root) if selection.labelled else {}
        self.root = chosen_split(parts, selection.split) if parts else root
        self._selection = selection
        folders, loose = _listed(self.root)
        if selection.labelled:
            check_layout(folders, loose)
        for name in folders:
            check_name(name)
            real_path(str(self.root), os.path.join(self.root, name))
        self._folders = sorted(folders)
        self.classes: tuple[str, ...] | None = None
        if selection.labelled:
            # A class that has no image in one part is a class of the collection all the same.
            every = {name for part in parts.values() for name in _listed(part)[0]} | set(folders)
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
        """None where persons come from the files themselves, which passing over a record would open."""
        if self._selection.person_column == PATIENT:
            return None
        return sum(1 for place in self._places for _ in self._entries(place))

    def part(self, start: int, stop: int) -> Iterator[Record]:
        return islice(self.records(), start, stop)

    def records(self) -> Iterator[Record]:
        """The images in the order of their classes and names."""
        for place in self._places:
            count = sum(1 for _ in self._entries(place))
            passes = 1 + count // _NAMES_AT_ONCE
            for turn in range(passes):
                names = (e.name for e in self._entries(place) if _bucket(e.name, passes) == turn)
                for name in sorted(names):
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


def _listed(root: Path) -> tuple[list[str], list[str]]:
    """The names of the folders and of the files in ``root``."""
    folders: list[str] = []
    files: list[str] = []
    with os.scandir(root) as entries:
        for entry in entries:
            if not is_ignored(entry.name):
                (folders if entry.is_dir() else files).append(entry.name)
    return folders, files


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
            detail=", ".join(sorted(loose)[:10]),
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


def _bucket(name: str, passes: int) -> int:
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) % passes


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
