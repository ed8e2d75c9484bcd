"""Private images and public images, as types that cannot be confused, and the function that reads both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from sfumato.data.cache import MEMORY_LIMIT
from sfumato.data.decode import PIXEL_LIMIT, Colour, Crop, ImageTransform
from sfumato.data.formats.objects import OUT_OF_RANGE, array_of
from sfumato.data.reader import Format, Reading, read_arrays
from sfumato.data.source import Selection
from sfumato.privacy.records import PrivateRecords

_BLOCK = 1024  # images


@dataclass(frozen=True)
class Images:
    """What ``read`` returns.

    Attributes:
        pixels: Decoded pixels ``uint8 [N, C, H, W]``, an array or a memory map.
        labels: Numbers of the classes, ``int64 [N]``.
        classes: The label set.
        persons: The number 0..P-1 of each image's person, where the data names persons.
        skipped: Which records ``skip_bad`` left out, and why; empty unless ``internal`` was asked for.
        place: Where they were read from.
    """

    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    persons: np.ndarray | None = None
    skipped: tuple[str, ...] = ()
    place: Path | None = None


class Options(TypedDict, total=False):
    """The options of ``read``, for the constructors that pass them on; a type checker knows each of them."""

    size: int | tuple[int, int] | None
    crop: Crop | int
    colour: Colour | None
    bits: int
    classes: Sequence[str] | int | None
    labelled: bool
    unlabelled: Literal["refuse", "leave out"]
    image_column: str | None
    label_column: str | None
    person_column: str | None
    person_file: str | Path | None
    person_pattern: str | None
    missing_persons: Literal["refuse", "leave out"]
    split: str
    format: Format | None
    skip_bad: bool
    internal: bool
    pixel_limit: int
    cache: str | Path | None
    memory_limit: int


def read(
    path: str | Path | Any,
    *,
    size: int | tuple[int, int] | None = None,
    crop: Crop | int = "centre",
    colour: Colour | None = None,
    bits: int = 16,
    classes: Sequence[str] | int | None = None,
    labelled: bool = True,
    unlabelled: Literal["refuse", "leave out"] = "refuse",
    image_column: str | None = None,
    label_column: str | None = None,
    person_column: str | None = None,
    person_file: str | Path | None = None,
    person_pattern: str | None = None,
    missing_persons: Literal["refuse", "leave out"] = "refuse",
    split: str = "train",
    format: Format | None = None,
    skip_bad: bool = False,
    infer_classes: bool = False,
    internal: bool = False,
    pixel_limit: int = PIXEL_LIMIT,
    cache: str | Path | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Images:
    """Read an image folder, npz, idx, parquet or a saved Hugging Face data set.

    Args:
        path: The collection, whose format is recognised by content; or a ``torch.utils.data.Dataset`` of (image,
            label), or a Hugging Face ``Dataset``, which is read once, into memory.
        size: The side of a square, or (height, width), to resize to; None leaves images as they are.
        crop: "centre" cuts to the proportions of ``size`` first, "none" does not, a number cuts a centred square.
        colour: "grey" or "rgb"; None leaves images as they are.
        bits: How many of 16 bits the values of deep grey images use; 12 for most scanners. DICOM files say it.
        classes: The label set, as names or a number of classes, where the collection does not declare it.
        labelled: False reads everything as one class.
        unlabelled: "refuse" records without a label, or "leave out" them.
        image_column: The column or array of images, where it has another name than usual.
        label_column: The column or array of labels.
        person_column: The column or array that says whose image it is.
        person_file: A CSV file with the columns ``file`` and ``person``, for images that are files.
        person_pattern: A regular expression whose first group, in a file's name, is the person.
        missing_persons: Where persons are named, "refuse" images that name none, or "leave out" them.
        split: Which part of a collection that has several.
        format: The format, where it is not to be recognised.
        skip_bad: Leave out records that cannot be read.
        infer_classes: Take the label set from the data; for public collections only.
        internal: Put names and counts into errors and ``skipped``.
        pixel_limit: Larger images are refused before they are decoded.
        cache: The folder for decoded pixels; by default the user's, and only above ``memory_limit``.
        memory_limit: Bytes of pixels that are held in memory; more go to the cache (``clear_cache`` removes them).

    Returns:
        The images as arrays.

    Raises:
        BadInput: If the collection, or with ``skip_bad=False`` a record, breaks a rule.
    """
    names = tuple(str(i) for i in range(classes)) if isinstance(classes, int) else classes
    reading = Reading(
        transform=ImageTransform(size=size, crop=crop, colour=colour, pixel_limit=pixel_limit, bits=bits),
        selection=Selection(
            image_column=image_column,
            label_column=label_column,
            person_column=person_column,
            person_file=None if person_file is None else Path(person_file),
            person_pattern=person_pattern,
            labelled=labelled,
            classes=None if names is None else tuple(names),
            unlabelled=unlabelled,
            missing_persons=missing_persons,
            split=split,
        ),
        format=format,
        skip_bad=skip_bad,
        infer_classes=infer_classes,
    )
    found, label_set = read_arrays(path, reading, internal=internal, cache=cache, memory_limit=memory_limit)
    return Images(
        pixels=found.columns["pixels"],
        labels=found.columns["labels"],
        classes=label_set,
        persons=found.columns.get("persons"),
        skipped=tuple(found.facts["skipped"]) if internal else (),
        place=Path(path) if isinstance(path, str | Path) else None,
    )


class PublicImages(Images):
    """Images that need no protection: synthetic ones, or a public collection."""

    def __len__(self) -> int:
        return len(self.pixels)

    @classmethod
    def read(cls, path: str | Path | Any, **options: Unpack[Options]) -> PublicImages:
        """Read as ``read`` does; errors name files and the label set may come from the data: nothing is private."""
        options["internal"] = True
        found = read(path, infer_classes=True, **options)
        return cls(found.pixels, found.labels, found.classes, found.persons, found.skipped)


def _parts(pixels: np.ndarray) -> Iterator[np.ndarray]:
    """The images in blocks; the array may be a file."""
    return (pixels[start : start + _BLOCK] for start in range(0, len(pixels), _BLOCK))


def _in_range(part: np.ndarray) -> bool:
    return bool(((part >= 0) & (part <= 1)).all())  # not so for NaN


class PrivateImages(PrivateRecords):
    """Images that need protection: only a Curator can query them, and a method's ``fit`` makes one.

    >>> import numpy as np
    >>> PrivateImages.from_arrays(np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1]), classes=2)
    PrivateImages(shape=(1, 8, 8), classes=2)
    """

    skipped: tuple[str, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        pixels: Any,
        labels: Any = None,
        *,
        classes: Sequence[str] | int | None = None,
        persons: Any = None,
        declared_size: int | None = None,
    ) -> PrivateImages:
        """Wrap NumPy arrays or tensors.

        Args:
            pixels: ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]``, as bytes or in 0..1.
            labels: Numbers of the classes, ``[N]``.
            classes: The label set, as names or a number of classes.
            persons: The number 0..P-1 of each image's person, ``[N]``.
            declared_size: About how many units there are, where that may be public.

        Raises:
            ValueError: If floating pixels are not all between 0 and 1.
        """
        pixels, labels, persons = (
            values if values is None or isinstance(values, np.ndarray) else array_of(values)
            for values in (pixels, labels, persons)
        )
        if np.issubdtype(pixels.dtype, np.floating) and not all(_in_range(part) for part in _parts(pixels)):
            raise ValueError(f"floating pixels must lie between 0 and 1, and some do not. {OUT_OF_RANGE}")
        if pixels.ndim == 3:
            pixels = pixels[:, None]
        elif pixels.ndim == 4 and pixels.shape[1] not in (1, 3) and pixels.shape[-1] in (1, 3):
            pixels = np.moveaxis(pixels, -1, 1)
        if classes is None:
            if labels is not None:
                raise ValueError("the label set is public and must be declared: classes=10 or classes=('cat', 'dog')")
            classes = ("all",)
        names = tuple(str(i) for i in range(classes)) if isinstance(classes, int) else tuple(classes)
        return cls(pixels, labels, classes=names, persons=persons, declared_size=declared_size)

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, declared_size: int | None = None, **options: Unpack[Options]
    ) -> PrivateImages:
        """Read a ``torch.utils.data.Dataset`` of (image, label) or a Hugging Face ``Dataset`` once, into memory.

        A transform of the data set is applied once: a random one would not be drawn anew in each step.

        >>> rows = [(np.zeros((8, 8), np.uint8), 0), (np.ones((8, 8), np.uint8), 1)]
        >>> PrivateImages.from_dataset(rows, classes=("cat", "dog"))
        PrivateImages(shape=(1, 8, 8), classes=2)
        """
        return cls.read(dataset, declared_size=declared_size, **options)

    @classmethod
    def from_images(cls, images: Images, *, declared_size: int | None = None) -> PrivateImages:
        """Wrap what ``read`` returned."""
        private = cls(
            images.pixels, images.labels, classes=images.classes, persons=images.persons, declared_size=declared_size
        )
        private.skipped = images.skipped
        if images.place is not None:
            private.read_from(images.place)
        return private

    @classmethod
    def read(
        cls, path: str | Path | Any, *, declared_size: int | None = None, **options: Unpack[Options]
    ) -> PrivateImages:
        """Read a collection of any format, with the options of ``read``."""
        return cls.from_images(read(path, **options), declared_size=declared_size)

    @classmethod
    def from_folder(
        cls, path: str | Path, *, declared_size: int | None = None, **options: Unpack[Options]
    ) -> PrivateImages:
        """Read an image folder: each class is a sub-folder, and the names of the folders are the label set."""
        options["format"] = "folder"
        return cls.read(path, declared_size=declared_size, **options)
