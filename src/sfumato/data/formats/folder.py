"""Image folders, where each class is a sub-folder, and CSV files that list images; only regular files are opened."""

from __future__ import annotations

import csv
import hashlib
import heapq
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, from_system, parsing
from sfumato.data.formats.dicom import PATIENT, decode_dicom, has_burned_in_text, is_dicom, patient
from sfumato.data.source import Record, Selection, files_fingerprint

# Files that desktops create in every folder they show; hidden files are left out anyway.
_DESKTOP_FILES = frozenset({"Thumbs.db", "desktop.ini"})


def is_ignored(name: str) -> bool:
    """Whether a file or folder of this name is no part of a collection: it is hidden, or a desktop made it."""
    return name.startswith(".") or name in _DESKTOP_FILES


OWN = ".sfumato"
"""The name of a file that marks a folder of the program's own, which is no class."""


def is_own(folder: str) -> bool:
    """Whether the program writes into this folder."""
    return os.path.exists(os.path.join(folder, OWN))


def real_path(root: str, path: str) -> str:
    """The real path of ``path``; a link that leads out of ``root`` is refused."""
    real, real_root = os.path.realpath(path), os.path.realpath(root)
    if real != real_root and not real.startswith(real_root.rstrip(os.sep) + os.sep):
        raise BadInput(
            "a path or link leads out of the folder",
            advice="Copy what it points to into the folder, or remove it (skip_bad=True, --skip-bad, leaves it out).",
            detail=os.path.relpath(path, root),
        )
    return real


def load_image(root: str, relative: str, transform: ImageTransform) -> np.ndarray:
    """Decode the image file ``relative`` inside ``root``."""
    try:
        real = real_path(root, os.path.join(root, relative))
        # Not blocking: a named pipe would wait for a writer for ever.
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise BadInput(
                "something in a class folder is not a file",
                advice="Class folders hold images only, no further folders; or use skip_bad=True (--skip-bad).",
                detail=relative,
            )
        with open(handle, "rb") as file:
            return decode_image(file, relative, transform)
    except OSError as error:
        raise from_system(error) from error


def decode_image(file: BinaryIO, name: str, transform: ImageTransform) -> np.ndarray:
    """Decode an image file that is open."""
    if is_dicom(file):
        return transform.fit(decode_dicom(file, name=name), name=name)
    return transform.decode(file, name=name)


def burned_in_text(root: Path, relative: str) -> bool:
    """Whether ``relative`` is a DICOM file that declares text burned into its pixels."""
    with open(real_path(str(root), os.path.join(root, relative)), "rb") as file:
        return is_dicom(file) and has_burned_in_text(file)


_IMAGE_COLUMNS = ("file", "path", "image", "filename")
_MALFORMED = "the list of files is not a CSV file"
_ADVICE = "Save it as UTF-8 text with commas and column names in the first line."


class FileList:
    """Paths are relative to the folder of the list and stay inside it."""

    classes: tuple[str, ...] | None = None

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path, self.root = path, path.parent
        names = self._names()
        usual = next((name for name in _IMAGE_COLUMNS if name in names), None)
        self._image = _column(selection.image_column or usual, names, "image-column")
        self._label = _column(selection.label_column or "label", names, "label-column") if selection.labelled else None
        person = selection.person_column
        self._person = None if person is None else _column(person, names, "person-column")

    def _names(self) -> list[str]:
        with parsing(_MALFORMED, advice=_ADVICE), self._path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file).fieldnames or [])

    def fingerprint(self) -> str:
        """Of the list and of every file in it."""
        files = (self.root / name for name, _, _ in self.entries())
        return files_fingerprint(chain([self._path], (file for file in files if file.is_file())))

    def entries(self) -> Iterator[tuple[str, int | str | None, str | None]]:
        """Path, label and person of every image, in the order of the list."""
        with parsing(_MALFORMED, advice=_ADVICE), self._path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                name = os.path.normpath((row[self._image] or "").strip())
                label = None if self._label is None else _label(row[self._label])
                yield name, label, None if self._person is None else (row[self._person] or "").strip() or None

    def records(self) -> Iterator[Record]:
        root = str(self.root)
        for name, label, person in self.entries():
            yield Record(load=partial(load_image, root, name), label=label, person=person, name=name, file=name)


def _column(name: str | None, names: list[str], option: str) -> str:
    if name is None or names.count(name) != 1:
        raise BadInput(
            f"the list of files has no single column {name!r}" if name else "the list of files has no column of paths",
            advice=f"Name the column with --{option}. Columns: {', '.join(names[:20]) or 'none'}.",
        )
    return name


def _label(text: str | None) -> int | str | None:
    text = (text or "").strip()
    return int(text) if text.isdecimal() else text or None


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


class Folder:
    """``root/class/image``, or ``root/train/class/image`` beside ``root/test``. Links may point inside only."""

    classes: tuple[str, ...] | None = None

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

    def records(self) -> Iterator[Record]:
        """All images in the order of classes and names."""
        files = ((place, name) for place in self._places for name in sorted(one.name for one in self._entries(place)))
        for place, name in files:
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
        return [one.name for one in entries if not is_ignored(one.name) and one.is_dir() and not is_own(one.path)]


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
