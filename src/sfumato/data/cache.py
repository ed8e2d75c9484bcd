"""Where decoded pixels are kept: in memory while they are few, in owner-only files on disk when they are many."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import struct
import tempfile
import weakref
from pathlib import Path
from typing import IO, Any

import numpy as np

from sfumato.files import cache_folder

MEMORY_LIMIT = 64 << 20
"""Bytes of decoded pixels kept in memory; a larger collection goes to the cache."""

_ENTRY = re.compile(r"^pixels-[0-9a-f]{32}$|^partial-")
_FACTS = "facts.json"
_KINDS: dict[str, Any] = {"pixels": np.uint8, "labels": np.int64, "persons": np.int64}


def clear_cache(cache: str | Path | None = None) -> int:
    """Removes all decoded pixels kept there, and what killed runs left behind; returns the number of bytes freed."""
    folder, freed = cache_folder(cache), 0
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if _ENTRY.match(entry.name) and entry.is_dir() and not entry.is_symlink():
            # Under another name first: a kill in between must not leave a part that seems to be the whole.
            aside = Path(tempfile.mkdtemp(prefix="partial-", dir=folder))
            entry.rename(aside)
            freed += sum(file.lstat().st_size for file in aside.rglob("*") if not file.is_dir())
            shutil.rmtree(aside, ignore_errors=True)
    return freed


class MappedRows(np.memmap):
    """A read-only memory map of rows that gathers rows by reading them from the file.

    To touch a row through the map costs a page fault, and the system maps up to a megabyte around it and keeps it:
    after enough random batches the process would seem to hold the whole file.
    """

    _handle: int | None = None

    def __getitem__(self, index: Any) -> Any:
        handle = self._handle
        if handle is None or not isinstance(index, (np.ndarray, list)) or np.ndim(index) != 1:
            return super().__getitem__(index)
        rows = np.asarray(index)
        if rows.dtype == np.bool_ and len(rows) == len(self):
            rows = np.flatnonzero(rows)
        if len(rows) and not np.issubdtype(rows.dtype, np.integer):
            raise IndexError("rows are chosen by whole numbers or by a mask with one entry for each row")
        rows = np.where(rows < 0, rows + len(self), rows)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError("a row number lies outside the collection")
        gathered = np.empty((len(rows), *self.shape[1:]), self.dtype)
        target, width = gathered.reshape(-1).view(np.uint8).data, self.strides[0]
        for place, row in enumerate(rows.tolist()):
            if os.preadv(handle, [target[place * width : (place + 1) * width]], row * width) != width:
                raise OSError("the file of decoded pixels has become shorter")
        return gathered


class ChosenRows:
    """Some rows of a large array, without a copy: an access reads the rows that it names, and no others."""

    def __init__(self, base: np.ndarray, rows: np.ndarray) -> None:
        self._base, self._rows = base, rows
        self.dtype, self.ndim = base.dtype, base.ndim
        self.shape = (len(rows), *base.shape[1:])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        chosen: np.ndarray = self._base[self._rows[index]]
        return chosen

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)


class CachedArrays:
    """Decoded rows as they are found again: three columns and the facts about them."""

    def __init__(self, columns: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
        self.columns = columns
        self.facts = facts


def cache_key(*parts: object) -> str:
    """A name for the entry of a collection that is read in one particular way."""
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def find(folder: Path, key: str) -> CachedArrays | None:
    """The finished entry of this key, if it is there, whole, and ours."""
    entry = folder / f"pixels-{key}"
    try:
        if entry.is_symlink() or entry.stat().st_uid != os.geteuid():
            return None
        facts = json.loads((entry / _FACTS).read_text())
        return CachedArrays({name: _map(entry / name, facts["shapes"][name]) for name in facts["shapes"]}, facts)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _map(file: Path, shape: list[int]) -> np.ndarray:
    name = file.name
    if file.stat().st_size != int(np.prod(shape)) * np.dtype(_KINDS[name]).itemsize:
        raise ValueError("the file is not as long as its shape says")
    rows = MappedRows(file, dtype=_KINDS[name], mode="r", shape=tuple(shape))
    # Held open with the map: the rows stay readable when the cache is cleared meanwhile. Views do not inherit it.
    rows._handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    weakref.finalize(rows, os.close, rows._handle)
    return rows


class Writer:
    """Takes decoded rows one by one. ``finish`` hands them back; ``discard`` leaves nothing behind.

    On disk the rows go to a folder with a temporary name, which is renamed when all is written: an entry of the
    cache is whole or is not there.
    """

    def __init__(self, folder: Path, *, memory_limit: int = MEMORY_LIMIT) -> None:
        self._folder, self._limit = folder, memory_limit
        self._partial: Path | None = None
        self._sinks: dict[str, IO[bytes]] = {name: io.BytesIO() for name in _KINDS}
        self._made: list[Path] = []
        self.count = 0
        self.shape: tuple[int, ...] | None = None

    def add(self, pixels: np.ndarray, *, label: int, person: int | None) -> None:
        self.shape = pixels.shape
        self._sinks["pixels"].write(pixels.tobytes())
        self._sinks["labels"].write(struct.pack("=q", label))
        if person is not None:
            self._sinks["persons"].write(struct.pack("=q", person))
        self.count += 1
        if self._partial is None and self.count * pixels.size > self._limit:
            self._spill()

    def _spill(self) -> None:
        missing = [place for place in (self._folder, *self._folder.parents) if not place.exists()]
        for place in reversed(missing):
            place.mkdir(mode=0o700, exist_ok=True)
            self._made.append(place)
        self._partial = Path(tempfile.mkdtemp(prefix="partial-", dir=self._folder))
        held, self._sinks = self._sinks, dict(self._sinks)
        for name, sink in held.items():
            handle = os.open(self._partial / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self._sinks[name] = open(handle, "wb", buffering=1 << 20)  # noqa: SIM115 (closed by finish or discard)
            if isinstance(sink, io.BytesIO):
                self._sinks[name].write(sink.getbuffer())
            sink.close()

    def finish(self, key: str, facts: dict[str, Any]) -> CachedArrays:
        shapes: dict[str, list[int]] = {"pixels": [self.count, *(self.shape or ())], "labels": [self.count]}
        if self._sinks["persons"].tell():
            shapes["persons"] = [self.count]
        if self._partial is None:
            columns = {
                name: np.frombuffer(self._memory(name), dtype=_KINDS[name]).reshape(shape)
                for name, shape in shapes.items()
            }
            return CachedArrays(columns, facts)
        for sink in self._sinks.values():
            sink.flush()
            os.fsync(sink.fileno())
            sink.close()
        if "persons" not in shapes:
            (self._partial / "persons").unlink()
        handle = os.open(self._partial / _FACTS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "w") as file:
            json.dump({**facts, "shapes": shapes}, file)
        if (kept := find(self._folder, key)) is not None:
            # Another process was faster.
            shutil.rmtree(self._partial)
            self._partial = None
            return kept
        entry = self._folder / f"pixels-{key}"
        if entry.exists():
            shutil.rmtree(entry)
        self._partial.rename(entry)
        self._partial = None
        if (kept := find(self._folder, key)) is None:
            raise OSError("the decoded pixels could not be found again where they were written")
        return kept

    def _memory(self, name: str) -> memoryview:
        sink = self._sinks[name]
        if not isinstance(sink, io.BytesIO):
            raise TypeError("this column is on disk")
        return sink.getbuffer()

    def discard(self) -> None:
        """After an error: no file, no folder that was not there before."""
        for sink in self._sinks.values():
            try:
                sink.close()
            except OSError:
                # A full disk refuses the last bytes once more; they are to go anyway.
                continue
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)
        for place in reversed(self._made):
            try:
                place.rmdir()
            except OSError:
                return
