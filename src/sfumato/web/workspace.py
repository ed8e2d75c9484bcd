"""The folders that the page may read, the one in which it writes, and the files that go in and out.

Everything is below the folders that were given when the server was started. Symbolic links that lead out of them are
refused, also inside a collection. Out go the public page and exported images.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.responses import FileResponse, Response, StreamingResponse

from sfumato.data.formats.folder import OWN, is_ignored, is_own
from sfumato.files import private_folder, write_json
from sfumato.web.security import DOCUMENT_POLICY

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
        for folder in ("jobs", "queue", "locks", "runs", "ledgers", "exports", "collections"):
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
        if path.is_relative_to(self.folder):
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


_SINGLE = ("images.npz", "images.parquet")
_PART = 1 << 20


def download_routes(workspace: Workspace) -> APIRouter:
    """The addresses of files that are fetched."""
    downloads = Downloads(workspace)
    router = APIRouter()
    router.add_api_route("/runs/{name}/download", downloads.public_page, methods=["GET"], response_model=None)
    router.add_api_route("/exports/{name}/download", downloads.export, methods=["GET"], response_model=None)
    return router


class Downloads:
    """Sends files as attachments."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def public_page(self, name: str) -> Response:
        """The public page of a run, which was scanned before it was written."""
        path = self.workspace.named("runs", name) / "public.html"
        if not _is_own(path):
            raise NotThere("this run has no public page")
        headers = {"Content-Security-Policy": DOCUMENT_POLICY}
        return FileResponse(path, media_type="text/html", filename=f"{name}.html", headers=headers)

    def export(self, name: str) -> Response:
        """Exported images: the npz or parquet file, or a zip of the folder."""
        folder = self.workspace.named("exports", name)
        if folder.is_symlink() or not _is_own(folder / "card.json"):
            raise NotThere("there is no such export")
        for single in _SINGLE:
            if _is_own(folder / single):
                filename = name + Path(single).suffix
                return FileResponse(folder / single, media_type="application/octet-stream", filename=filename)
        headers = {"Content-Disposition": f'attachment; filename="{name}.zip"'}
        return StreamingResponse(zipped(folder), media_type="application/zip", headers=headers)


def exports_of(workspace: Workspace, run: str) -> list[str]:
    """The names of the exports of a run that are there as a whole, in order."""
    found = []
    for path in (workspace.folder / "exports").iterdir():
        name, _, number = path.name.rpartition("-")
        if name == run and number.isdecimal() and (path / "card.json").is_file():
            found.append((int(number), path.name))
    return [name for _, name in sorted(found)]


def zipped(folder: Path) -> Iterator[bytes]:
    """The files of a folder as a zip, made while it is sent. They are stored as they are: images are compressed."""
    stream = _Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:  # type: ignore[call-overload]
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            entry = zipfile.ZipInfo.from_file(path, Path(folder.name, path.relative_to(folder)).as_posix())
            with path.open("rb") as source, archive.open(entry, "w") as target:
                while part := source.read(_PART):
                    target.write(part)
                    if stream.size >= _PART:
                        yield stream.taken()
    yield stream.taken()


class _Stream:
    """What ``zipfile`` writes to where it cannot go back; the parts are taken as they come."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def taken(self) -> bytes:
        """What was written since the last call."""
        found = b"".join(self._parts)
        self._parts, self.size = [], 0
        return found


def _is_own(path: Path) -> bool:
    """A file, and no link to one elsewhere."""
    return path.is_file() and not path.is_symlink()
