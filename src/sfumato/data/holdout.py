"""Training and test images that have nothing in common: the parts of a collection, or images held out at random."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Unpack, cast

import numpy as np

from sfumato.data.cache import ChosenRows, MappedRows
from sfumato.data.errors import BadInput
from sfumato.data.images import Images, Options, read
from sfumato.data.reader import collection_splits
from sfumato.files import json_text, write_file
from sfumato.privacy.budget import Unit

# Public data sets have a few exact copies across their parts; more than this is no test.
_COPIES_ALLOWED = 0.01
_BLOCK = 1024


@dataclass(frozen=True)
class HoldOut:
    """Holds out each unit with probability ``share``, by a keyed hash of the unit alone.

    Whether a unit is held out does not depend on the other units, so the guarantee of a training on the rest covers the
    held-out units as well. The key is secret: it says who was trained on.

    Attributes:
        share: The probability.
        key: The secret of the hash.
        unit: What the guarantee protects. Without it, persons with all their images where persons are named. Under a
            guarantee per image a person may be divided: if one image decided for all of a person, removing that image
            would move the others.
    """

    share: float
    key: str
    unit: Unit | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"--hold-out is a share between 0 and 1, not {self.share:g}")

    @classmethod
    def drawn(cls, share: float, *, unit: Unit | None = None) -> HoldOut:
        return cls(share, secrets.token_hex(16), unit)

    @classmethod
    def load(cls, path: Path) -> HoldOut:
        """What ``save`` wrote."""
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}: the run was trained without --hold-out")
        found = json.loads(path.read_text())
        return cls(float(found["share"]), str(found["key"]), found.get("unit"))

    def to_text(self) -> str:
        """What ``load`` reads. It is not private, and for the owner alone."""
        return json_text({"NOT PRIVATE": True, **asdict(self)})

    def save(self, path: Path) -> None:
        """Write share, key and unit for the owner alone."""
        write_file(path, self.to_text(), private=True)

    def split(self, images: Images) -> tuple[Images, Images]:
        """The images to train on and those that are held out."""
        held = self._held(images)
        return subset(images, ~held), subset(images, held)

    def training_part(self, images: Images) -> Images:
        """The images to train on. Where pixels are on disk they stay there, and rows are read when they are used."""
        kept = np.flatnonzero(~self._held(images))
        if not isinstance(images.pixels, MappedRows):
            return subset(images, kept)
        # What stands in for an array offers what is done to the pixels of a private collection.
        return subset(images, kept, pixels=cast(np.ndarray, ChosenRows(images.pixels, kept)))

    def _held(self, images: Images) -> np.ndarray:
        if images.persons is None or self.unit == "image":
            drawn = (self._draw(pixels) for pixels in _one_by_one(images.pixels))
            return np.fromiter((draw < self.share for draw in drawn), dtype=bool, count=len(images.labels))
        # The first image of each person decides for all of them.
        first = np.unique(images.persons, return_index=True)[1]
        held = np.array([self._draw(images.pixels[row]) < self.share for row in first], dtype=bool)
        return held[images.persons]

    def _draw(self, pixels: np.ndarray) -> float:
        digest = hashlib.blake2b(pixels.tobytes(), digest_size=8, key=bytes.fromhex(self.key)).digest()
        return int.from_bytes(digest, "big") / 2**64


def _one_by_one(pixels: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of an array that may be a file, read in blocks."""
    for start in range(0, len(pixels), _BLOCK):
        yield from np.asarray(pixels[start : start + _BLOCK])


def subset(images: Images, rows: np.ndarray, *, pixels: np.ndarray | None = None) -> Images:
    """These rows; the persons are numbered anew. ``pixels`` are theirs, where they were chosen before."""
    persons = images.persons
    if persons is not None:
        persons = np.unique(np.asarray(persons)[rows], return_inverse=True)[1].astype(np.int64)
    pixels = images.pixels[rows] if pixels is None else pixels
    return replace(images, pixels=pixels, labels=np.asarray(images.labels)[rows], persons=persons)


def read_train_and_test(
    path: str | Path,
    test_path: str | Path | None = None,
    *,
    hold_out: HoldOut | None = None,
    infer_classes: bool = False,
    **options: Unpack[Options],
) -> tuple[Images, Images]:
    """Read images to train on and images to test on that were not trained on.

    Args:
        path: The collection that was, or will be, trained on.
        test_path: The test images, where they lie elsewhere.
        hold_out: How the collection was, or will be, divided, where it has no test part.
        infer_classes: Take the label set from the data; for evaluations, which are not private.
        options: As for ``read``; without ``split``.

    Raises:
        BadInput: If there is no test part, or if it repeats the training images.
    """
    if hold_out is not None:
        train, test = hold_out.split(read(path, infer_classes=infer_classes, **options))
        if not (len(train.labels) and len(test.labels)):
            raise BadInput("nothing was held out, or everything", advice="Choose another share with --hold-out.")
        return train, test
    if test_path is None:
        check_test_part(Path(path))
    train = read(path, infer_classes=infer_classes, **options)
    options["classes"] = train.classes
    if test_path is not None:
        # Test images belong to nobody who was trained on; they need not name persons.
        for name in ("person_column", "person_file", "person_pattern"):
            options.pop(name, None)  # type: ignore[misc]
    elsewhere = Path(path if test_path is None else test_path)
    options["split"] = "test" if "test" in collection_splits(elsewhere) else "train"
    test = read(elsewhere, **options)
    check_disjoint(train, test)
    return train, test


def check_test_part(path: Path) -> None:
    """Refuse a collection that has no test part."""
    if "test" not in collection_splits(path):
        raise BadInput(
            f"{path} has no test part, and testing on images that were learnt from says nothing",
            advice="Name test images (evaluate: --real-test, compare: --test), or hold some out before training "
            "(compare --hold-out 0.2; train --hold-out 0.2, then evaluate --held-out RUN).",
        )


def check_disjoint(train: Images, test: Images) -> None:
    """Refuse test images of which more than one in a hundred is also a training image, pixel by pixel."""
    known = {_digest(pixels) for pixels in train.pixels}
    copies = sum(_digest(pixels) in known for pixels in test.pixels)
    if copies > _COPIES_ALLOWED * len(test.labels):
        raise BadInput(
            "the test images repeat the training images",
            advice="Name test images that were not trained on, or hold some out before training (--hold-out 0.2).",
        )


def _digest(pixels: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=16).digest()
