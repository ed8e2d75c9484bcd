"""The folders that the page may read, and the folder in which it writes.

Everything is below the folders that were given when the server was started. Symbolic links that lead out of them are
refused, also inside a collection.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sfumato.data.formats.folder import OWN, is_ignored, is_own
from sfumato.files import private_folder, write_json

NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")
_FOLDER = "sfumato"


class Refused(ValueError):
    """A request that is not allowed; the text may be shown. ``back`` is the address of the form to try again."""

    def __init__(self, text: str, *, back: str | None = None) -> None:
        super().__init__(text)
        self.back = back


class NotThere(LookupError):
    """Something that does not exist; the text may be shown."""


@dataclass(frozen=True)
class Entry:
    """A file or folder that can be chosen."""

    name: str
    path: Path
    is_folder: bool
    holds: str = ""


@dataclass(frozen=True)
class Workspace:
    """The root folders; ``sfumato/`` in the first of them holds everything that the page writes."""

    roots: tuple[Path, ...]

    @classmethod
    def opened(cls, roots: list[Path]) -> Workspace:
        """Check the roots and create the folders."""
        if not roots:
            raise ValueError("say which folders the page may use: --root FOLDER")
        resolved = tuple(root.resolve() for root in roots)
        for root in resolved:
            if not root.is_dir():
                raise NotADirectoryError(f"--root {root} is not a folder")
        workspace = cls(resolved)
        if workspace.folder.is_symlink():
            raise ValueError(f"{workspace.folder} is a symbolic link; the page writes below --root only")
        for folder in ("jobs", "queue", "locks", "runs", "ledgers", "uploads", "exports", "collections"):
            private_folder(workspace.folder / folder)
        (workspace.folder / OWN).touch(mode=0o600)
        return workspace

    @property
    def folder(self) -> Path:
        """Where the page writes."""
        return self.roots[0] / _FOLDER

    def inside(self, text: str) -> Path:
        """The real path of ``text``; refuses what does not exist or lies outside of the roots."""
        if "\0" in text or len(text) > 4000:
            raise Refused("this is not a path")
        given = Path(text)
        path = Path(os.path.realpath(given if given.is_absolute() else self.roots[0] / given))
        if not any(path.is_relative_to(root) for root in self.roots):
            raise Refused("only what lies below the folders given by --root can be used")
        if not path.exists():
            raise NotThere("there is no such file or folder")
        return path

    def named(self, kind: str, name: str) -> Path:
        """The path of something that the page made, such as ``named("runs", "digits")``; it need not exist."""
        if not is_name(name):
            raise NotThere(f"there is no {kind.removesuffix('s')} of this name")
        return self.folder / kind / name

    def entries(self, folder: Path) -> list[Entry]:
        """What can be chosen in a folder: folders first, without hidden names and links that lead out."""
        found = []
        with os.scandir(folder) as listing:
            for one in listing:
                if one.name.startswith(".") or Path(one.path) == self.folder:
                    continue
                try:
                    path = self.inside(one.path)
                except (Refused, NotThere):
                    continue
                found.append(Entry(one.name, path, path.is_dir(), holds(path) if path.is_dir() else ""))
        return sorted(found, key=lambda entry: (not entry.is_folder, entry.name))

    def check_collection(self, path: Path) -> None:
        """Refuse the page's own folder and a collection with symbolic links that lead out of the roots."""
        if path == self.folder or (path.is_relative_to(self.folder) and "uploads" not in path.parts):
            raise Refused("this folder holds the page's own files; choose a collection of images")
        for link in _links(path):
            target = Path(os.path.realpath(link))
            if not any(target.is_relative_to(root) for root in self.roots):
                raise Refused("the collection has symbolic links that lead out of the folders given by --root")

    def add_collection(self, path: Path) -> str:
        """Remember a collection; returns its name."""
        self.check_collection(path)
        name = _collection_name(path)
        target = self.folder / "collections" / f"{name}.json"
        if not target.exists():
            write_json(target, {"path": str(path)}, private=True)
        return name

    def chosen(self, path: Path) -> str | None:
        """The name of the collection at ``path``, if it was chosen."""
        name = _collection_name(path)
        return name if (self.folder / "collections" / f"{name}.json").exists() else None

    def collection(self, name: str) -> Path:
        """The path of a collection."""
        found = read_json(self.named("collections", f"{name}.json"))
        if found is None:
            raise NotThere("there is no such collection")
        return self.inside(found["path"])

    def ledger(self, collection: str) -> Path:
        """The ledger of a collection; it exists after the first training."""
        return self.named("ledgers", f"{collection}.jsonl")


_COUNTED = 100_000


def holds(folder: Path) -> str:
    """The classes and images of a folder of class folders, in words; empty for any other folder."""
    try:
        visible = [one for one in os.scandir(folder) if not is_ignored(one.name)]
        classes = [one.path for one in visible if one.is_dir() and not is_own(one.path)]
        images = sum(1 for path in classes for one in islice(os.scandir(path), _COUNTED) if one.is_file())
    except OSError:
        return ""
    if not images or any(one.is_file() for one in visible):
        return ""
    return f"{len(classes):,} class{'es' if len(classes) > 1 else ''}, {images:,} images"


def _collection_name(path: Path) -> str:
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    return f"{slug(path.stem if path.is_file() else path.name)}-{digest}"


def is_name(text: str) -> bool:
    """Whether ``text`` can be the name of a run, a job or a collection."""
    return NAME.fullmatch(text) is not None and ".." not in text


def slug(text: str) -> str:
    """A name for files and addresses.

    >>> slug("Chest X-Rays (2024)"), slug("日本")
    ('chest-x-rays-2024', 'unnamed')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "unnamed"


def read_json(path: Path) -> Any:
    """The content of a JSON file, or ``None`` where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None


def _links(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        return
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            place = Path(folder, name)
            if place.is_symlink():
                yield place
