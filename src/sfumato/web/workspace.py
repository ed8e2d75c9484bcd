"""The folders that the page may read, the one in which it writes, and the files that go in and out.

Everything is below the folders that were given when the server was started. Symbolic links that lead out of them are
refused, also inside a collection. In goes a zip with a collection; out go the public page and exported images.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from fastapi import APIRouter
from starlette.responses import FileResponse, Response, StreamingResponse

from sfumato.data.formats.folder import OWN, is_ignored, is_own
from sfumato.files import new_folder, private_folder, write_json
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


MEBIBYTE = 1 << 20
_CHUNK = MEBIBYTE
_RESERVE = 512 * MEBIBYTE  # of the disk, which stays free
_UNREADABLE = (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, UnicodeError, zlib.error, struct.error)
_DESKTOP_FILES = frozenset({"__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini"})
_TABLES = frozenset({".npz", ".parquet", ".arrow", ".csv"})
_IDX = ("-ubyte", "-ubyte.gz")


@dataclass(frozen=True)
class Limits:
    """What is accepted: bytes of the zip, bytes when unpacked, their ratio, number of files, length of a path."""

    bytes: int = 4096 * MEBIBYTE
    unpacked: int = 16384 * MEBIBYTE
    ratio: int = 200
    files: int = 500_000
    path: int = 500


async def receive(stream: AsyncIterator[bytes], target: Path, limits: Limits) -> None:
    """Write the body of a request to ``target``, which is removed again if there is too much of it."""
    free = shutil.disk_usage(target.parent).free - _RESERVE
    size = 0
    try:
        with target.open("xb") as file:
            async for part in stream:
                size += len(part)
                if size > min(limits.bytes, free):
                    raise Refused(f"the file is larger than {min(limits.bytes, free) // MEBIBYTE} MiB")
                file.write(part)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def unpack(archive: Path, name: str, uploads: Path, limits: Limits) -> Path:
    """Unpack a zip into a new folder of ``uploads``, or refuse it and leave nothing.

    What a desktop adds is left out, and so is a folder around everything, unless it is the only class.
    """
    try:
        with zipfile.ZipFile(archive) as found:
            checked = _checked(found, archive.stat().st_size, limits, shutil.disk_usage(uploads).free - _RESERVE)
            entries = _placed(checked)
            target = _new_name(uploads, slug(PurePosixPath(name).stem))
            with new_folder(target, private=True) as folder:
                _extract(found, entries, folder, limits)
    except _UNREADABLE:
        raise Refused("this is not a zip file that can be read") from None
    return target


def collection_in(folder: Path) -> Path:
    """What to read of an unpacked zip: its only table or list of files, or the folder."""
    files = [path for path in folder.iterdir() if path.is_file()]
    return files[0] if len(files) == 1 and files[0].suffix.lower() in _TABLES else folder


def _placed(entries: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """Where each file goes below the new folder."""
    found = {entry.filename: entry for entry in entries if not any(map(_is_desktop_file, entry.filename.split("/")))}
    if not found:
        raise Refused("the zip has no files")
    while len({name.partition("/")[0] for name in found}) == 1:
        inner = {name.partition("/")[2]: entry for name, entry in found.items()}
        # A folder that holds images is a class, be it the only one.
        if "" in inner or not (any("/" in name for name in inner) or _is_table(inner)):
            break
        found = inner
    return found


def _is_table(names: Collection[str]) -> bool:
    return all(PurePosixPath(name).suffix.lower() in _TABLES or name.endswith(_IDX) for name in names)


def _is_desktop_file(part: str) -> bool:
    return part in _DESKTOP_FILES or part.startswith("._")


def _checked(found: zipfile.ZipFile, size: int, limits: Limits, free: int) -> list[zipfile.ZipInfo]:
    """The files of the archive, after a look at its table of contents."""
    entries = [entry for entry in found.infolist() if not entry.is_dir()]
    total = sum(entry.file_size for entry in entries)
    if len(entries) > limits.files:
        raise Refused(f"the zip has more than {limits.files:,} files")
    if total > min(limits.unpacked, free) or total > limits.ratio * size + MEBIBYTE:
        raise Refused("the zip is too large when unpacked")
    seen = set()
    for entry in entries:
        _check_name(entry, limits)
        seen.add(entry.filename.casefold())
    if len(seen) != len(entries):
        raise Refused("the zip has two files of one name")
    if not entries:
        raise Refused("the zip has no files")
    return entries


def _check_name(entry: zipfile.ZipInfo, limits: Limits) -> None:
    parts = entry.filename.split("/")
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise Refused("the zip has links or special files")
    if any(part in ("", ".", "..") or len(os.fsencode(part)) > 255 for part in parts):
        raise Refused("the zip has a file name that leads elsewhere or is too long")
    if len(entry.filename) > limits.path or "\\" in entry.filename or any(ord(c) < 32 for c in entry.filename):
        raise Refused("the zip has a file name that is not allowed")


def _extract(found: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], folder: Path, limits: Limits) -> None:
    """Count what comes out: the sizes in the table of contents may be wrong."""
    left = limits.unpacked
    for name, entry in entries.items():
        place = folder.joinpath(*name.split("/"))
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with found.open(entry) as source, place.open("xb") as target:
                allowed = min(left, entry.file_size)
                while part := source.read(_CHUNK):
                    allowed -= len(part)
                    left -= len(part)
                    if allowed < 0:
                        raise Refused("the zip is too large when unpacked")
                    target.write(part)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise Refused("the zip has a file and a folder of one name") from None


def _new_name(folder: Path, name: str) -> Path:
    number = 1
    while (folder / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return folder / (name if number == 1 else f"{name}-{number}")


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
