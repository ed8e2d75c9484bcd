"""An image folder: each class is a sub-folder, and the folders' names are the public label set."""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from sfumato.data.decode import Frame
from sfumato.data.errors import BadInput, from_system
from sfumato.data.source import Choice, Record

# What desktops leave behind in every folder they show; never a picture.
_LITTER = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
# File names held in memory at once; a class with more is walked in several passes.
_NAMES_AT_ONCE = 100_000


class Folder:
    """``root/class/picture``. Links may point inside ``root`` only."""

    def __init__(self, root: Path, choice: Choice) -> None:
        self.root = root
        self._real = os.path.realpath(root)
        self._choice = choice
        folders: list[str] = []
        loose: list[str] = []
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.name not in _LITTER:
                    (folders if _is_folder(entry) else loose).append(entry.name)
        if choice.labelled:
            if loose:
                raise BadInput(
                    "files lie beside the class folders",
                    advice="Put every picture into the folder of its class, or read without labels (labelled=False).",
                    detail=", ".join(sorted(loose)[:10]),
                )
            if not folders:
                raise BadInput(
                    "the folder has no class folders in it",
                    advice="Make one sub-folder for each class, even an empty one.",
                )
        for name in folders:
            check_name(name)
            self._inside(os.path.join(root, name))
        self._folders = sorted(folders)
        self.classes: tuple[str, ...] | None = tuple(self._folders) if choice.labelled else None
        if choice.labelled and choice.classes is not None:
            undeclared = sorted(set(self._folders) - set(choice.classes))
            if undeclared:
                raise BadInput(
                    "a class folder is not in the declared label set",
                    advice="Declare it in classes, rename the folder or take it out.",
                    detail=", ".join(undeclared[:10]),
                )
            self.classes = choice.classes
        self._places = self._folders if choice.labelled else [*self._folders, ""]

    def _inside(self, path: str) -> str:
        """The real path; refuses what leads out of the folder."""
        real = os.path.realpath(path)
        if real != self._real and not real.startswith(self._real.rstrip(os.sep) + os.sep):
            raise BadInput(
                "a link leads out of the folder",
                advice="Copy what it points to into the folder, or remove the link (a file: skip_bad=True does it).",
                detail=os.path.relpath(path, self.root),
            )
        return real

    def _entries(self, place: str) -> Iterator[os.DirEntry[str]]:
        with os.scandir(os.path.join(self.root, place)) as entries:
            for entry in entries:
                if entry.name in _LITTER or (place == "" and _is_folder(entry)):
                    continue
                yield entry

    def fingerprint(self) -> str:
        total = 0
        for place in self._places:
            for entry in self._entries(place):
                found = entry.stat(follow_symlinks=False)
                part = f"{place}/{entry.name}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ctime_ns}"
                # A sum does not depend on the order in which the system lists files.
                digest = hashlib.blake2b(part.encode("utf-8", "surrogateescape"), digest_size=16).digest()
                total = (total + int.from_bytes(digest, "little")) % 2**128
        return f"{self._real}\0{total:x}"

    def records(self) -> Iterator[Record]:
        for place in self._places:
            count = sum(1 for _ in self._entries(place))
            passes = 1 + count // _NAMES_AT_ONCE
            for turn in range(passes):
                names = (e.name for e in self._entries(place) if _bucket(e.name, passes) == turn)
                for name in sorted(names):
                    relative = os.path.join(place, name)
                    yield Record(
                        load=partial(self._load, relative),
                        label=place if self._choice.labelled else None,
                        person=None,
                        name=relative,
                    )

    def _load(self, relative: str, frame: Frame) -> np.ndarray:
        try:
            real = self._inside(os.path.join(self.root, relative))
            # Not blocking: a named pipe would wait for a writer for ever.
            handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise BadInput(
                    "something in a class folder is not a file",
                    advice="Class folders hold pictures only, no further folders; or use skip_bad=True (--skip-bad).",
                    detail=relative,
                )
            with open(handle, "rb") as file:
                return frame.decode(file, name=relative)
        except OSError as error:
            raise from_system(error) from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir()


def _bucket(name: str, passes: int) -> int:
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) % passes


def check_name(name: str) -> None:
    """A class name is printed on cards and used as a folder name: any letters will do, nothing invisible."""
    bad = any(unicodedata.category(letter) in ("Cc", "Cs", "Cf", "Zl", "Zp") for letter in name)
    if bad or not name or "/" in name or name.startswith(".") or name != name.strip():
        raise BadInput(
            "a class has a name that no class folder can have",
            advice="Names may use any letters, but no control or invisible characters or line breaks, no slash, no "
            "blank at either end and no dot at the start. Rename it.",
            detail=repr(name),
        )
