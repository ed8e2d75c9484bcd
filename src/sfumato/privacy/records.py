"""The private collection as the Curator holds it, without a public length, and what is kept of each of its records."""

from __future__ import annotations

import contextlib
import copy
import csv
import hashlib
import math
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self
from weakref import WeakMethod

import numpy as np
import torch
from torch import Tensor

from sfumato.privacy.budget import Unit
from sfumato.privacy.distributed import World
from sfumato.privacy.ledger import RunRefused

_HASHED_AT_ONCE = 64  # images


def _files(place: Path) -> set[tuple[int, int]]:
    """Device and number of every file, and of those that a list names: the same for all names of a file."""
    found = [place] if place.is_file() else [Path(base, name) for base, _, names in os.walk(place) for name in names]
    told = {(one.st_dev, one.st_ino) for one in (file.stat() for file in found if file.exists())}
    for listing in (file for file in found if file.suffix.lower() == ".csv" and file.is_file()):
        with listing.open(newline="", encoding="utf-8-sig", errors="replace") as rows:
            names = {name for row in csv.reader(rows) for name in row}
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                one = os.stat(listing.parent / name)
                if stat.S_ISREG(one.st_mode):
                    told.add((one.st_dev, one.st_ino))
    return told


class PrivateRecords:
    """Images that need protection.

    What is public is said when it is built: the image shape, the label set and, if the owner wishes, a declared
    size. The number of records, their order and their values are private, so there is no length, no iteration
    and no informative ``repr``.

    Args:
        pixels: ``[N, C, H, W]``, ``uint8`` (0..255) or floating (0..1); a memory map does as well as an array.
        labels: Class numbers.
        classes: The public label set.
        persons: Each image's person as a number; without it every image is its own unit.
        declared_size: The number of records, if the owner declares it public.
        ids: A number of its own for each image, by default 0..N-1. Sampling and draws are keyed by it and by the
            run's secret, so that a collection with one image removed and the others' ids kept changes nobody else's.
    """

    def __init__(
        self,
        pixels: np.ndarray,
        labels: np.ndarray | None = None,
        *,
        classes: Sequence[str] = ("all",),
        persons: np.ndarray | None = None,
        declared_size: int | None = None,
        ids: np.ndarray | None = None,
    ) -> None:
        if pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
            raise ValueError("pixels must be [images, 1 or 3 channels, height, width]")
        if pixels.dtype != np.uint8 and not np.issubdtype(pixels.dtype, np.floating):
            raise ValueError(f"pixels must be uint8 or floating, not {pixels.dtype}")
        labels = np.zeros(len(pixels), dtype=np.int64) if labels is None else labels
        if len(labels) != len(pixels):
            raise ValueError("there must be one label for each image; the two counts differ")
        if not classes:
            raise ValueError("the label set must name at least one class")
        if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(classes)):
            raise ValueError(f"labels must be numbers 0 to {len(classes) - 1}, one for each declared class")
        if persons is not None and len(persons) != len(pixels):
            raise ValueError("there must be one person for each image; the two counts differ")
        for name, numbers in (("ids", ids), ("persons", persons)):
            if numbers is not None and len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < 2**32:
                raise ValueError(f"{name} must be whole numbers from 0 on, below 2^32")
        if ids is not None and (len(ids) != len(pixels) or len(np.unique(ids)) != len(ids)):
            raise ValueError("each image needs an id of its own")
        self.shape: tuple[int, int, int] = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        self.classes: tuple[str, ...] = tuple(classes)
        self.declared_size = declared_size
        self._pixels = pixels
        self._labels = labels
        self._persons = persons
        self._ids = ids
        self._masked: frozenset[int] = frozenset()
        self._hash: str | None = None
        self._place: Path | None = None

    def read_from(self, place: str | Path) -> None:
        """Remember where the collection was read from, so that the same files are not taken for public ones."""
        self._place = Path(place).absolute()

    def lies_in(self, public: Path) -> bool:
        """Whether one of the two places holds the other, or both hold the same file under two names.

        Names and numbers of files are compared, not contents: whether a picture of the private collection is in
        another one is private, and a refusal would say it.
        """
        if self._place is None or not (self._place.exists() and public.exists()):
            return False
        own, other = self._place.resolve(), public.resolve()
        if own == other or own in other.parents or other in own.parents:
            return True
        return not _files(own).isdisjoint(_files(other))

    def fingerprint(self, key: bytes) -> str:
        """Of the whole content, with a key: equal for a resumed run, and of no use to who lacks the key."""
        return hashlib.blake2b(self._digest().encode(), key=key, digest_size=32).hexdigest()

    def _without(self, unit: int, kind: Unit) -> Self:
        """The neighbouring collection in which this unit's images do not exist; every other image keeps its id."""
        ids = np.arange(len(self._labels)) if self._ids is None else np.asarray(self._ids)
        owners = ids if kind == "image" or self._persons is None else np.asarray(self._persons)
        kept = np.flatnonzero(owners != unit)
        neighbour = copy.copy(self)
        neighbour._hash = None
        neighbour._pixels, neighbour._labels, neighbour._ids = self._pixels[kept], self._labels[kept], ids[kept]
        if self._persons is not None:
            neighbour._persons = np.asarray(self._persons)[kept]
        return neighbour

    def _digest(self, most: int | None = None) -> str:
        """A hash of all labels, persons and ids, and of all images or of ``most``, spread over the collection.

        It stays with the data, as what is kept of each record does.
        """
        if most is None and self._hash is not None:
            return self._hash
        count = len(self._labels)
        found = hashlib.blake2b(repr((self.shape, self.classes, count, sorted(self._masked))).encode(), digest_size=32)
        for numbers in (self._labels, self._persons, self._ids):
            found.update(b"none" if numbers is None else np.ascontiguousarray(numbers, dtype=np.int64).data)
        rows = np.linspace(0, count - 1, count if most is None else min(count, most)).round().astype(np.int64)
        for start in range(0, len(rows), _HASHED_AT_ONCE):
            found.update(np.ascontiguousarray(self._pixels[rows[start : start + _HASHED_AT_ONCE]]).data)
        if most is None:
            self._hash = found.hexdigest()
        return found.hexdigest()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, classes={len(self.classes)})"

    def _fetch(self, rows: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images in 0..1 in torch's default dtype, and labels, for these rows."""
        pixels = torch.from_numpy(np.ascontiguousarray(self._pixels[rows])).to(device)
        scale = 255.0 if pixels.dtype == torch.uint8 else 1.0
        images = pixels.to(torch.get_default_dtype()) / scale
        return images, torch.from_numpy(np.asarray(self._labels[rows], dtype=np.int64)).to(device)


_ON_DEVICE = 1 << 30  # bytes: more than this does not stay on a GPU
_IN_MEMORY = 1 << 28  # bytes: more than this goes to disk
_ROWS = 1 << 16  # rows that processes exchange at once


class PrivateState:
    """A vector for each record (or shard), written only from its own data, draws and what was released.

    A method holds the handle and passes it back to the Curator; the values are never handed out, and they die with
    the run: a large state lies in a file that has no name, so that not even a crash leaves it behind. Nothing is
    released about them, so they cost nothing: record i's memory enters record i's vector alone.
    """

    def __init__(
        self,
        name: str,
        records: int,
        shape: tuple[int, ...],
        fill: float,
        device: torch.device,
        *,
        shards: int | None = None,
        digest: Callable[[], str] | None = None,
    ) -> None:
        self.name, self.shards = name, shards
        # A method keeps the handle; it must not keep the records.
        self._digest = None if digest is None else WeakMethod(digest)
        self.shape, self._fill = shape, fill
        size = (records, math.prod(shape))
        if 4 * math.prod(size) > (_ON_DEVICE if device.type == "cuda" else _IN_MEMORY):
            with tempfile.TemporaryFile() as file:
                self._values = torch.from_numpy(np.memmap(file, dtype=np.float32, mode="w+", shape=size))
            self._values.fill_(fill) if fill else None
        else:
            self._values = torch.full(size, fill, dtype=torch.float32, device=device)
        self._written = torch.zeros(records, dtype=torch.bool)

    def __repr__(self) -> str:
        return f"PrivateState({self.name!r}, shape={self.shape})"

    def _saved(self) -> tuple[Tensor, str]:
        """The values, and a hash of the records they belong to, for a checkpoint."""
        digest = self._digest() if self._digest else None
        return self._values, digest() if digest else ""

    def _restore(self, values: Tensor, digest: str) -> None:
        """Take the values over, unless they are of other records: a vector would then depend on two of them."""
        if values.shape != self._values.shape or digest != self._saved()[1]:
            raise RunRefused(
                f"the collection has changed since {self.name!r} was kept for each of its records. Resume the run with "
                "the collection as it was, or start a new run"
            )
        self._values.copy_(values)

    def _read(self, rows: Tensor, device: torch.device) -> Tensor:
        values = self._values[rows.to(self._values.device)].to(device, torch.get_default_dtype())
        return values.view(len(rows), *self.shape)

    def _unchanged(self, values: Tensor) -> Tensor:
        """Which of these values still are what the state was filled with."""
        return (values.flatten(1) == self._fill).all(1)

    def _write(self, rows: Tensor, values: Tensor) -> None:
        if values.shape != (len(rows), *self.shape):
            raise ValueError(f"state {self.name!r} needs one row of shape {self.shape} for each record")
        self._values[rows.to(self._values.device)] = values.detach().flatten(1).to(self._values)
        self._written[rows.cpu()] = True

    def _gather(self, world: World) -> None:
        """Bring every row that another process has written into this one, for a checkpoint."""
        for start in range(0, len(self._values), _ROWS):
            part, own = (
                self._values[start : start + _ROWS],
                self._written[start : start + _ROWS].to(self._values.device),
            )
            # The bits of the one process that has written a row, and zeros of all others.
            bits = world.all_reduce(torch.where(own[:, None], part.view(torch.int32), 0))
            written = world.all_reduce(own.to(torch.uint8)) > 0
            part.copy_(torch.where(written[:, None], bits.view(torch.float32), part))
