"""The idx format of MNIST and its relatives: an images file and a labels file, plain or gzipped."""

from __future__ import annotations

import gzip
import os
import re
import struct
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

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

    def count(self) -> int | None:
        """Arrays are read faster than processes are started."""
        return None

    def part(self, start: int, stop: int) -> Iterator[Record]:
        return islice(self.records(), start, stop)

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
