"""What a collection holds: for those who may see it, before it is used. Everything here is private."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, NoPerson, Unavailable, from_system
from sfumato.data.formats.folder import burned_in_text
from sfumato.data.persons import Persons, Proposal, proposals, unnamed_text
from sfumato.data.reader import Reading, collection_splits, open_source, recognise, silent_decoders
from sfumato.data.source import Record, Selection, decoded

_NAMED_AT_MOST = 100
_USUAL_SIZES = (28, 32, 64)


@dataclass
class Inspection:
    """What a collection holds, and what kind of collection it is.

    ``sizes`` counts (height, width); ``unnamed`` counts, by label, images that name no person where persons are to be
    named; ``brightness`` counts the largest pixel of each image, from 0 to 255; ``bad`` names records and the
    rules they break.
    """

    images: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    colours: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    unlabelled: int = 0
    persons: Counter[int | str] = field(default_factory=Counter)
    spellings: Counter[str] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)
    burned_in: int = 0
    brightness: Counter[int] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    bad_images: int = 0
    shared: int = 0
    format: str = ""
    splits: tuple[str, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)
    person_patterns: tuple[Proposal, ...] = ()
    without_unnamed: bool = False
    declared_classes: tuple[str, ...] | None = None
    compared: bool = False

    def add(
        self, record: Record, pixels: np.ndarray | BadInput, persons: Persons, known: set[bytes], *, root: Path | None
    ) -> None:
        """Count one record; ``known`` are the keys of public images."""
        try:
            if isinstance(pixels, BadInput):
                raise pixels
            try:
                person = persons.name(record)
            except NoPerson:
                person = None
                self.unnamed["" if record.label is None else str(record.label)] += 1
        except Unavailable:
            raise
        except BadInput as error:
            self.bad_images += 1
            if len(self.bad) < _NAMED_AT_MOST:
                self.bad.append(f"{record.name}: {error.rule}")
            return
        self.images += 1
        self.sizes[pixels.shape[1], pixels.shape[2]] += 1
        self.colours[_colour(pixels)] += 1
        self.brightness[int(pixels.max(initial=0))] += 1
        self.shared += bool(known) and _key(pixels) in known
        if record.label is None or record.label == "":
            self.unlabelled += 1
        else:
            self.labels[str(record.label)] += 1
        if person is not None:
            self.persons[person] += 1
            self.spellings[str(persons.given(record))] += 1
        if root is not None and record.file is not None and burned_in_text(root, record.file):
            self.burned_in += 1

    @property
    def shared_with_public(self) -> int | None:
        """Images that are also in the public collection; ``None`` where there was none to compare with."""
        return self.shared if self.compared else None

    @property
    def person_problem(self) -> str | None:
        """Why the persons cannot be as they were given; None where none were asked for or every image names one."""
        if len(self.persons) == 1 < self.images:
            return "all images that name a person are one person's, and the guarantee would be for that person alone"
        if not self.unnamed or (self.without_unnamed and self.persons):
            return None
        if not self.persons:
            return "no image names a person in the way that was given"
        without = [label for label, count in self.unnamed.items() if label and count == self.labels[label]]
        text = unnamed_text(self.unnamed)
        return text + (f"; in {', '.join(sorted(without))} none does" if without else "")

    @property
    def person_warning(self) -> str | None:
        """What is suspicious about the persons; None where nothing is."""
        if self.unnamed and self.person_problem is None:
            return f"{unnamed_text(self.unnamed)} and are left out"
        if len(self.persons) > 1 and max(self.persons.values()) == 1:
            return "every image is a person of its own: where a person has several images, this names them wrongly"
        return None

    @property
    def joined_names(self) -> int:
        """Names that differ from another one in their spelling alone, and are one person with it."""
        return len(self.spellings) - len(self.persons)

    @property
    def zeros(self) -> int:
        """Persons whose name is that of another one but for leading zeros; they count as two."""
        plain = {re.sub(r"(?<!\d)0+(?=\d)", "", str(name)) for name in self.persons}
        return len(self.persons) - len(plain)

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
    def brightest(self) -> int:
        """The largest pixel of all images, from 0 to 255."""
        return max(self.brightness, default=255)

    @property
    def suggested_bits(self) -> int | None:
        """10, 12 or 14 where no pixel is larger than such a value in a file of 16 bits; else None."""
        return next((bits for bits in (10, 12, 14) if self.brightest <= 2 ** (bits - 8)), None)

    @property
    def suggested_colour(self) -> str | None:
        """``grey`` where no image has colour, ``rgb`` where some have; ``None`` where nothing needs conversion."""
        if set(self.colours) <= {"grey"} or set(self.colours) <= {"colour"}:
            return None
        return "rgb" if "colour" in self.colours else "grey"

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "splits": list(self.splits),
            "left_out": self.left_out,
            "declared_classes": None if self.declared_classes is None else list(self.declared_classes),
            "images": self.images,
            "sizes": [{"height": h, "width": w, "images": n} for (h, w), n in self.sizes.most_common()],
            "colours": dict(self.colours),
            "labels": dict(sorted(self.labels.items())),
            "unlabelled": self.unlabelled,
            "persons": len(self.persons),
            "most_images_per_person": max(self.persons.values(), default=None),
            "unnamed": dict(self.unnamed),
            "person_problem": self.person_problem,
            "person_warning": self.person_warning,
            "person_patterns": [{**asdict(one), "sentence": one.sentence} for one in self.person_patterns],
            "joined_names": self.joined_names,
            "names_that_differ_in_leading_zeros": self.zeros,
            "burned_in_annotations": self.burned_in,
            "brightest": self.brightest,
            "suggested_bits": self.suggested_bits,
            "bad_images": self.bad_images,
            "shared_with_public": self.shared_with_public,
            "bad": self.bad,
        }


def inspect(
    path: str | Path,
    selection: Selection,
    *,
    public: str | Path | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Inspection:
    """Read every image of a collection and count what is there.

    Args:
        path: The collection.
        selection: Which columns and which part to read.
        public: A collection that is to be treated as public: images that are in both are counted. Only equal pixels
            are found, not images that were resized or compressed anew.
        report: Called with how many images were read, and 0.
    """
    path = Path(path)
    reading = Reading(ImageTransform(), selection, format=None, skip_bad=False, infer_classes=False)
    try:
        with silent_decoders():
            known = set() if public is None else _public_keys(Path(public))
            kind = recognise(path)
            source = open_source(path, reading)
            found = Inspection(
                format=kind,
                splits=collection_splits(path),
                declared_classes=source.classes,
                compared=public is not None,
                without_unnamed=selection.missing_persons == "leave out",
            )
            found.left_out = {name: _count(path, reading, name) for name in found.splits if name != selection.split}
            persons, root = Persons(selection), getattr(source, "root", None)
            for done, (record, pixels) in enumerate(decoded(source.records(), reading.transform), start=1):
                found.add(record, pixels, persons, known, root=root)
                report(done, 0)
            if not found.persons and not found.unnamed:
                found.person_patterns = tuple(proposals(source.records()))
    except OSError as error:
        raise from_system(error).shown(internal=True) from None
    return found


def _count(path: Path, reading: Reading, split: str) -> int:
    """The number of records of another part."""
    other = replace(reading, selection=replace(reading.selection, split=split))
    return sum(1 for _ in open_source(path, other).records())


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


def _colour(pixels: np.ndarray) -> str:
    if len(pixels) == 1:
        return "grey"
    same = np.array_equal(pixels[0], pixels[1]) and np.array_equal(pixels[1], pixels[2])
    return "grey stored as colour" if same else "colour"
