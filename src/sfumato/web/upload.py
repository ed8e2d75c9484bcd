"""A zip file that is sent to the page: received, checked and unpacked within limits, all of it or nothing."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sfumato.files import new_folder
from sfumato.web.workspace import Refused, slug

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
