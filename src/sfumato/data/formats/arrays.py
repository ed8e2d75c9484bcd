"""Arrays of images and labels: the idx format of MNIST and its relatives, and npz files, read without pickle."""

from __future__ import annotations

import gzip
import math
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from sfumato.data.decode import PIXEL_LIMIT, ImageTransform
from sfumato.data.errors import BadInput, parsing
from sfumato.data.source import Record, Selection, files_fingerprint

IMAGES = re.compile(r"^(?P<split>.*?)-?images[-.]idx3-ubyte(\.gz)?$")
_MALFORMED = "an idx file is damaged or cut short"
_ADVICE = "Fetch it again and compare its checksum."
_ROWS = 1024


def splits(folder: Path) -> dict[str, Path]:
    """The images file of each split in a folder; t10k is called test."""
    with os.scandir(folder) as entries:
        files = sorted((entry.name, match["split"]) for entry in entries if (match := IMAGES.match(entry.name)))
    return {"test" if split == "t10k" else split: folder / name for name, split in files}


class Idx:
    """``<split>-images-idx3-ubyte[.gz]`` with ``<split>-labels-idx1-ubyte[.gz]`` beside it."""

    classes: tuple[str, ...] | None = None

    def __init__(self, path: Path, selection: Selection) -> None:
        self._images = choose(splits(path), selection.split) if path.is_dir() else path
        self._labels = None
        if selection.labelled:
            stem = self._images.name.removesuffix(".gz")
            stem = stem.replace("images", "labels").replace("idx3", "idx1")
            pair = [self._images.with_name(stem + end) for end in ("", ".gz")]
            present = [file for file in pair if file.exists() and file != self._images]
            if not present:
                raise BadInput(
                    "the images file has no labels file beside it",
                    advice="Put <split>-labels-idx1-ubyte beside it, or read without labels (labelled=False, "
                    "--no-labels).",
                    detail=str(pair[0]),
                )
            self._labels = present[0]

    def fingerprint(self) -> str:
        return files_fingerprint([file for file in (self._images, self._labels) if file is not None])

    def records(self) -> Iterator[Record]:
        with parsing(_MALFORMED, advice=_ADVICE), _open(self._images) as images:
            count, height, width = _header(images, dimensions=3)
            labels = None if self._labels is None else self._label_values(count)
            if height * width == 0 or height * width > PIXEL_LIMIT:
                raise BadInput("the idx header gives an impossible image size", advice=_ADVICE)
            for start in range(0, count, _ROWS):
                rows = min(_ROWS, count - start)
                for offset, pixels in enumerate(_images(images, rows, height, width)):
                    name = f"row {start + offset}"
                    label = None if labels is None else next(labels)
                    yield Record(load=partial(_fit, pixels, name), label=label, person=None, name=name)
            _end(images)
            if labels is not None:
                # Runs the label file to its end, where it is checked that nothing follows.
                next(labels, None)

    def _label_values(self, images: int) -> Iterator[int]:
        if self._labels is None:
            return
        with parsing(_MALFORMED, advice=_ADVICE), _open(self._labels) as labels:
            (count,) = _header(labels, dimensions=1)
            if count != images:
                raise BadInput(
                    "images and labels differ in number",
                    advice="Check that the two files belong together.",
                    detail=f"{images} images, {count} labels",
                )
            for start in range(0, count, _ROWS):
                yield from _exactly(labels, min(_ROWS, count - start))
            _end(labels)


def choose(found: dict[str, Path], split: str) -> Path:
    """The split asked for; when there is but one, that one."""
    chosen = found.get(split) or (next(iter(found.values())) if len(found) == 1 else None)
    if chosen is None:
        ending = [name for name in found if name.endswith(f"-{split}")]
        chosen = found[ending[0]] if len(ending) == 1 else None
    if chosen is None:
        raise BadInput(
            f"the collection has no split called {split!r}",
            advice=f"Choose one with --split (split=...): {', '.join(sorted(found)) or 'there is none'}.",
        )
    return chosen


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else path.open("rb")  # type: ignore[return-value]


def _header(file: IO[bytes], *, dimensions: int) -> tuple[int, ...]:
    magic = _exactly(file, 4)
    if magic != bytes((0, 0, 8, dimensions)):
        raise BadInput(
            f"an idx file must start with the bytes 00 00 08 {dimensions:02d}",
            advice="Images are idx3-ubyte, labels idx1-ubyte; check that the files are not swapped or unpacked twice.",
        )
    return struct.unpack(f">{dimensions}I", _exactly(file, 4 * dimensions))


def _images(file: IO[bytes], rows: int, height: int, width: int) -> Iterator[np.ndarray]:
    for _ in range(rows):
        yield np.frombuffer(_exactly(file, height * width), np.uint8).reshape(height, width)


def _exactly(file: IO[bytes], count: int) -> bytes:
    block = file.read(count)
    if len(block) != count:
        raise BadInput("an idx file is shorter than its header says", advice=_ADVICE)
    return block


def _end(file: IO[bytes]) -> None:
    if file.read(1):
        raise BadInput("an idx file is longer than its header says", advice=_ADVICE)


def _fit(pixels: np.ndarray, name: str, transform: ImageTransform) -> np.ndarray:
    return transform.fit(pixels, name=name)


_MALFORMED_NPZ = "the npz file is damaged"
_NPZ_ADVICE = "Write it again with numpy.savez or numpy.savez_compressed."
_BLOCK = 1 << 20
# Three channels of the largest image that is decoded; refused before anything is read.
_ROW_LIMIT = 3 * PIXEL_LIMIT


class Npz:
    """Arrays ``images`` and ``labels``; ``persons`` and ``classes`` (names) are optional."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self.path = path
        with parsing(_MALFORMED_NPZ, advice=_NPZ_ADVICE), zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            # MedMNIST files hold train_images, train_labels, val_images, …
            part = f"{selection.split}_" if "images" not in members and f"{selection.split}_images" in members else ""
            self._images = selection.image_column or f"{part}images"
            self._labels = (selection.label_column or f"{part}labels") if selection.labelled else None
            self._persons = selection.person_column or ("persons" if "persons" in members else None)
            wanted = [name for name in (self._images, self._labels, self._persons) if name is not None]
            missing = [name for name in wanted if name not in members]
            if missing:
                raise BadInput(
                    f"the npz file has no array called {missing[0]!r}",
                    advice="Name the arrays with --image-column, --label-column and --person-column, or "
                    "read without labels (--no-labels, labelled=False).",
                    detail=f"arrays: {', '.join(sorted(members)[:20])}",
                )
            counts = {name: _Column(archive, members[name], name).count for name in wanted}
            if len(set(counts.values())) > 1:
                raise BadInput(
                    "images, labels and persons differ in number",
                    advice="There must be one label (and one person) for each image.",
                    detail=", ".join(f"{name}: {count}" for name, count in counts.items()),
                )
            self.classes = None
            if "classes" in members and selection.labelled:
                names = list(_Column(archive, members["classes"], "classes").values())
                if not all(isinstance(name, str) for name in names):
                    raise BadInput("the array 'classes' must hold names", advice="Save it as an array of strings.")
                self.classes = tuple(str(name) for name in names)

    def fingerprint(self) -> str:
        return files_fingerprint([self.path])

    def records(self) -> Iterator[Record]:
        with parsing(_MALFORMED_NPZ, advice=_NPZ_ADVICE), zipfile.ZipFile(self.path) as archive:
            images = _Column(archive, archive.getinfo(f"{self._images}.npy"), self._images)
            if len(images.item) not in (2, 3):
                raise BadInput(
                    "images must be an array of 3 or 4 dimensions",
                    advice="Save images as [N, H, W], [N, H, W, C] or [N, C, H, W].",
                )
            labels, persons = (
                None if name is None else _Column(archive, archive.getinfo(f"{name}.npy"), name).values()
                for name in (self._labels, self._persons)
            )
            for row, pixels in enumerate(images.rows()):
                label = None if labels is None else next(labels)
                person = None if persons is None else next(persons)
                name = f"row {row}"
                yield Record(load=partial(_fit, pixels, name), label=label, person=person, name=name)


def npz_splits(path: Path) -> list[str]:
    """The parts of a file with arrays such as ``train_images``, as MedMNIST has them."""
    with parsing(_MALFORMED_NPZ, advice=_NPZ_ADVICE), zipfile.ZipFile(path) as archive:
        names = [info.filename.removesuffix(".npy") for info in archive.infolist()]
        return [name.removesuffix("_images") for name in names if name.endswith("_images")]


class _Column:
    """One array of the archive, row by row. Its header must agree with the size the archive gives."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> None:
        self._archive, self._info, self._name = archive, info, name
        with archive.open(info) as stream:
            shape, self._dtype = self._header(stream)
            self._start = stream.tell()
        if not shape:
            raise BadInput(f"the array {name!r} is a single value", advice="It must have one row for each image.")
        self.count: int = shape[0]
        self.item: tuple[int, ...] = shape[1:]
        self._row_bytes = math.prod(self.item) * self._dtype.itemsize
        if self._row_bytes > _ROW_LIMIT:
            raise BadInput(
                f"a row of the array {name!r} claims more than {_ROW_LIMIT:,} bytes",
                advice="Scale the images down first.",
                detail=f"shape {shape}",
            )
        if info.file_size - self._start != self.count * self._row_bytes:
            raise BadInput(
                f"the array {name!r} is not as long as its header says", advice=_NPZ_ADVICE, detail=f"shape {shape}"
            )

    def _header(self, stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:
            raise BadInput(f"the array {self._name!r} has an unknown version of the npy format", advice=_NPZ_ADVICE)
        shape, columns_first, dtype = read(stream)
        if dtype.hasobject or dtype.names is not None or dtype.kind not in "biufU":
            raise BadInput(
                f"the array {self._name!r} holds objects instead of plain numbers or strings",
                advice="Objects need pickle, which can run code and is never read. Save it as uint8, int64 or strings.",
            )
        if columns_first and len(shape) > 1:
            raise BadInput(
                f"the array {self._name!r} is stored column by column",
                advice="Save numpy.ascontiguousarray(array) instead.",
            )
        return shape, dtype

    def rows(self) -> Iterator[np.ndarray]:
        if self._row_bytes == 0:
            raise BadInput(f"the array {self._name!r} has rows without content", advice=_NPZ_ADVICE)
        at_once = max(1, _BLOCK // self._row_bytes)
        with self._archive.open(self._info) as stream:
            self._header(stream)
            for start in range(0, self.count, at_once):
                rows = min(at_once, self.count - start)
                block = stream.read(rows * self._row_bytes)
                if len(block) != rows * self._row_bytes:
                    raise BadInput(_MALFORMED_NPZ, advice=_NPZ_ADVICE, detail=self._name)
                yield from np.frombuffer(block, self._dtype).reshape(rows, *self.item)

    def values(self) -> Iterator[int | str | None]:
        """One value a row. A column vector ``[N, 1]`` does as well as ``[N]``."""
        if math.prod(self.item) != 1 or self._dtype.kind not in "biuU":
            raise BadInput(
                f"the array {self._name!r} must hold one whole number or string for each image",
                advice="Save it as a one-dimensional array of whole numbers or strings.",
            )
        for row in self.rows():
            value = row.reshape(()).item()
            yield value if isinstance(value, str) else int(value)
