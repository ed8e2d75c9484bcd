"""Parquet shards and image folders at an address."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Literal

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput
from sfumato.data.formats.dicom import PATIENT, is_dicom, patient
from sfumato.data.formats.folder import (
    SPLITS,
    check_layout,
    check_name,
    chosen_split,
    declared_classes,
    decode_image,
    is_ignored,
)
from sfumato.data.formats.tables import by_split, chosen_shards, parquet_table
from sfumato.data.remote import Place, RemoteFile
from sfumato.data.source import Entry, ListedSource, Record, Selection, Source, files_fingerprint

# Files that are fetched at the same time, and the most bytes of them: an image may be large.
_AT_ONCE, _BYTES_AT_ONCE = 64, 64 << 20
_REQUESTS = 16
_LARGEST_FILE = 1 << 28
_LISTING_IN_MEMORY = 1 << 24  # bytes; a longer list of files goes to a temporary file that has no name


def remote_format(place: Place) -> Literal["folder", "parquet"]:
    """The format of the collection at an address: "parquet" or "folder"."""
    file = place.file()
    if file is None:
        return "parquet" if _shards(place) else "folder"
    if file.name.endswith(".parquet"):
        return "parquet"
    raise BadInput(
        "only parquet files and image folders are read from an address",
        advice="Copy the file to this machine, or store the collection as parquet.",
    )


def remote_source(place: Place, selection: Selection, kind: str | None) -> Source:
    """The collection at an address."""
    if (kind or remote_format(place)) == "folder":
        return RemoteFolder(place, selection)
    file = place.file()
    return parquet_table([file] if file is not None else chosen_shards(_shards(place), selection.split), selection)


def remote_splits(place: Place) -> tuple[str, ...]:
    """The names of the parts of a collection at an address."""
    if place.file() is not None:
        return ()
    return tuple(by_split(_shards(place)) or _folder_splits(place))


def _shards(place: Place) -> list[RemoteFile]:
    """The parquet files of a folder; ``data/`` is where the Hub keeps them."""
    folders, files = place.listed()
    found = [file for file in files if file.name.endswith(".parquet")]
    if not found and "data" in folders:
        found = [file for file in place.listed("data")[1] if file.name.endswith(".parquet")]
    return found


def _folder_splits(place: Place) -> dict[str, str]:
    """The folder of each part of ``root/train/class/image``; empty where the folders are classes."""
    folders, files = _visible(place)
    names = {name: SPLITS.get(name.lower()) for name in folders}
    if files or not names or None in names.values() or len(set(names.values())) != len(names):
        return {}
    if not all(place.listed(name)[0] for name in names):
        return {}
    return {split: name for name, split in names.items() if split is not None}


def _visible(place: Place, *folders: str) -> tuple[list[str], list[RemoteFile]]:
    names, files = place.listed(*folders)
    return [name for name in names if not is_ignored(name)], [file for file in files if not is_ignored(file.name)]


class RemoteFolder(ListedSource):
    """An image folder at an address. Its files are listed once, class by class, and fetched a few at a time."""

    def __init__(self, place: Place, selection: Selection) -> None:
        parts = _folder_splits(place) if selection.labelled else {}
        root = (chosen_split(parts, selection.split),) if parts else ()
        self._place, self._root, self._selection = place, root, selection
        self._folders, loose = _visible(place, *root)
        folders = self._folders
        if selection.labelled:
            check_layout(folders, [file.name for file in loose])
        for name in folders:
            check_name(name)
        if selection.labelled:
            # A class that has no image in one part is a class of the collection all the same.
            every = {name for part in parts.values() for name in _visible(place, part)[0]} | set(folders)
            self.classes = declared_classes(tuple(sorted(every)), selection)

    @cached_property
    def _listed(self) -> IO[str]:
        """Lines with folder, path, size and version of every file, as the store gave them at the first use."""
        listed = tempfile.SpooledTemporaryFile(_LISTING_IN_MEMORY, "w+", encoding="ascii")  # noqa: SIM115
        for folder in self._folders if self._selection.labelled else [*self._folders, ""]:
            inside = (*self._root, folder) if folder else self._root
            for file in _visible(self._place, *inside)[1]:
                listed.write(json.dumps((folder, file.path, file.size, file.version)) + "\n")
        return listed

    def _lines(self) -> Iterator[Entry]:
        self._listed.seek(0)
        return map(json.loads, self._listed)

    def fingerprint(self) -> str:
        return files_fingerprint(RemoteFile(self._place, *described) for _, *described in self._lines())

    def count(self) -> int | None:
        return sum(1 for _ in self._lines())

    def entries(self, scratch: Path | None = None) -> Iterator[Entry]:
        """Folder, path and size of every image, in the order of classes and names."""
        for folder, path, size, _ in self._lines():
            yield folder, path, size

    def records_of(self, entries: Iterable[Entry]) -> Iterator[Record]:
        files = ((folder, RemoteFile(self._place, path, size, "")) for folder, path, size in entries)
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for group in _groups(files):
                # Fetched before a record is given out: what the network fails to bring is no bad record.
                for (folder, file), content in zip(group, pool.map(_content, group), strict=True):
                    name = f"{folder}/{file.name}" if folder else file.name
                    yield Record(
                        load=partial(_decode, content, name),
                        label=folder if self._selection.labelled else None,
                        person=self._patient(content, name),
                        name=name,
                        file=name,
                    )

    def _patient(self, content: bytes | None, name: str) -> str | None:
        if self._selection.person_column != PATIENT or content is None:
            return None
        file = io.BytesIO(content)
        return patient(file, name=name) if is_dicom(file) else None


def _groups(files: Iterable[tuple[str, RemoteFile]]) -> Iterator[list[tuple[str, RemoteFile]]]:
    group: list[tuple[str, RemoteFile]] = []
    size = 0
    for entry in files:
        if group and (len(group) == _AT_ONCE or size + entry[1].size > _BYTES_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry[1].size
    if group:
        yield group


def _content(entry: tuple[str, RemoteFile]) -> bytes | None:
    return None if entry[1].size > _LARGEST_FILE else entry[1].content()


def _decode(content: bytes | None, name: str, transform: ImageTransform) -> np.ndarray:
    if content is None:
        raise BadInput(
            f"an image file is larger than {_LARGEST_FILE:,} bytes",
            advice="Scale it down first, or leave such records out with skip_bad=True (--skip-bad).",
            detail=name,
        )
    return decode_image(io.BytesIO(content), name, transform)
