"""What a collection holds: for those who may see it, before it is used. Everything here is private."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, from_system
from sfumato.data.formats.files import burned_in_text
from sfumato.data.persons import Persons
from sfumato.data.reader import Reading, collection_splits, open_source, recognise, silent_decoders
from sfumato.data.source import Record, Selection

_NAMED_AT_MOST = 100
_USUAL_SIZES = (28, 32, 64)


@dataclass
class Inspection:
    """What was found. ``sizes`` counts (height, width); ``bad`` names records and the rules they break."""

    format: str
    splits: tuple[str, ...]
    declared_classes: tuple[str, ...] | None
    images: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    colours: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    unlabelled: int = 0
    persons: Counter[int] = field(default_factory=Counter)
    burned_in: int = 0
    bad: list[str] = field(default_factory=list)
    bad_images: int = 0
    shared_with_public: int | None = None

    @property
    def suggested_size(self) -> int | None:
        """A size to resize to; ``None`` where all images are small squares of one size."""
        if not self.sizes:
            return None
        if len(self.sizes) == 1:
            (height, width) = next(iter(self.sizes))
            if height == width <= max(_USUAL_SIZES):
                return None
        smallest = min(min(size) for size in self.sizes)
        return max((size for size in _USUAL_SIZES if size <= smallest), default=_USUAL_SIZES[0])

    @property
    def suggested_colour(self) -> str | None:
        """``grey`` where no image has colour, ``rgb`` where some have; ``None`` where nothing needs conversion."""
        if set(self.colours) <= {"grey"} or set(self.colours) <= {"colour"}:
            return None
        return "rgb" if "colour" in self.colours else "grey"

    def to_json(self) -> dict[str, Any]:
        """All of it, with counts as objects."""
        return {
            "format": self.format,
            "splits": list(self.splits),
            "declared_classes": None if self.declared_classes is None else list(self.declared_classes),
            "images": self.images,
            "sizes": [{"height": h, "width": w, "images": n} for (h, w), n in self.sizes.most_common()],
            "colours": dict(self.colours),
            "labels": dict(sorted(self.labels.items())),
            "unlabelled": self.unlabelled,
            "persons": len(self.persons),
            "most_images_per_person": max(self.persons.values(), default=None),
            "burned_in_annotations": self.burned_in,
            "bad_images": self.bad_images,
            "shared_with_public": self.shared_with_public,
            "bad": self.bad,
        }


def inspect(
    path: str | Path,
    selection: Selection,
    *,
    public: str | Path | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Inspection:
    """Read every image of a collection and count what is there.

    Args:
        path: The collection.
        selection: Which columns and which part to read.
        public: A collection that is to be treated as public: images that are in both are counted. Only equal pixels
            are found, not images that were resized or compressed anew.
        report: Called with the number of images that were read so far.
    """
    path = Path(path)
    reading = Reading(ImageTransform(), selection, format=None, skip_bad=False, infer_classes=False)
    try:
        with silent_decoders():
            known = None if public is None else _public_keys(Path(public))
            kind = recognise(path)
            source = open_source(path, reading)
            found = Inspection(kind, collection_splits(path), source.classes)
            found.shared_with_public = None if known is None else 0
            persons = Persons(selection)
            for done, record in enumerate(source.records(), start=1):
                _count(record, found, persons, known, root=getattr(source, "root", None))
                report(done)
    except OSError as error:
        raise from_system(error).shown(internal=True) from None
    return found


def _public_keys(path: Path) -> set[bytes]:
    """The keys of the images of a public collection; those that cannot be read have none."""
    reading = Reading(ImageTransform(), Selection(labelled=False), format=None, skip_bad=False, infer_classes=False)
    keys = set()
    for record in open_source(path, reading).records():
        try:
            keys.add(_key(record.load(ImageTransform())))
        except BadInput:
            continue
    return keys


def _key(pixels: np.ndarray) -> bytes:
    """The same for equal images, whether a grey one is stored as grey or as colour."""
    values = pixels if _colour(pixels) == "colour" else pixels[:1]
    return hashlib.sha256(f"{values.shape}".encode() + values.tobytes()).digest()


def _count(record: Record, found: Inspection, persons: Persons, known: set[bytes] | None, *, root: Path | None) -> None:
    try:
        pixels = record.load(ImageTransform())
        person = persons.number(record)
    except BadInput as error:
        found.bad_images += 1
        if len(found.bad) < _NAMED_AT_MOST:
            found.bad.append(f"{record.name}: {error.rule}")
        return
    found.images += 1
    found.sizes[pixels.shape[1], pixels.shape[2]] += 1
    found.colours[_colour(pixels)] += 1
    if known is not None and found.shared_with_public is not None:
        found.shared_with_public += _key(pixels) in known
    if record.label is None or record.label == "":
        found.unlabelled += 1
    else:
        found.labels[str(record.label)] += 1
    if person is not None:
        found.persons[person] += 1
    if root is not None and record.file is not None and burned_in_text(root, record.file):
        found.burned_in += 1


def _colour(pixels: np.ndarray) -> str:
    if len(pixels) == 1:
        return "grey"
    same = np.array_equal(pixels[0], pixels[1]) and np.array_equal(pixels[1], pixels[2])
    return "grey stored as colour" if same else "colour"
