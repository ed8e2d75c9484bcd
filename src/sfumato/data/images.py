"""Two types that must not be confused: images that need protection, and images that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import numpy as np

from sfumato.data.cache import MEMORY_LIMIT
from sfumato.data.decode import PIXEL_LIMIT, Colour, Crop, Frame
from sfumato.data.reader import Format, Reading, read_kept
from sfumato.data.source import Choice
from sfumato.privacy.records import PrivateRecords


@dataclass(frozen=True)
class Images:
    """What a reader returns: decoded pixels ``uint8 [N, C, H, W]`` (array or memory map), labels ``int64 [N]``,
    the label set, and each image's person 0..P-1 when the data names persons. ``set_aside`` says which records
    were left out by skip_bad, and why; it is empty unless ``internal`` was asked for."""

    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    persons: np.ndarray | None = None
    set_aside: tuple[str, ...] = ()


class Options(TypedDict, total=False):
    """The options of ``read``, for the constructors that pass them on; a type checker knows each of them."""

    size: int | tuple[int, int] | None
    crop: Crop | int
    colour: Colour | None
    classes: Sequence[str] | int | None
    labelled: bool
    unlabelled: Literal["refuse", "leave out"]
    image_column: str | None
    label_column: str | None
    person_column: str | None
    split: str
    format: Format | None
    skip_bad: bool
    internal: bool
    pixel_limit: int
    cache: str | Path | None
    memory_limit: int


def read(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    crop: Crop | int = "centre",
    colour: Colour | None = None,
    classes: Sequence[str] | int | None = None,
    labelled: bool = True,
    unlabelled: Literal["refuse", "leave out"] = "refuse",
    image_column: str | None = None,
    label_column: str | None = None,
    person_column: str | None = None,
    split: str = "train",
    format: Format | None = None,
    skip_bad: bool = False,
    infer_classes: bool = False,
    internal: bool = False,
    pixel_limit: int = PIXEL_LIMIT,
    cache: str | Path | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Images:
    """Reads an image folder, npz, idx, parquet or a saved Hugging Face data set. Malformed input raises BadInput.

    ``classes`` declares the label set, as names or a number. ``skip_bad`` sets bad records aside; ``internal`` puts
    names and counts into errors and ``set_aside``. A collection above ``memory_limit`` bytes, or any when ``cache``
    is given, is kept as a memory map in ``cache`` (the user's cache folder); ``clear_cache`` removes it.
    ``infer_classes`` takes the label set from the data: for public collections only.
    """
    names = tuple(str(i) for i in range(classes)) if isinstance(classes, int) else classes
    reading = Reading(
        frame=Frame(size=size, crop=crop, colour=colour, pixel_limit=pixel_limit),
        choice=Choice(
            image_column=image_column,
            label_column=label_column,
            person_column=person_column,
            labelled=labelled,
            classes=None if names is None else tuple(names),
            unlabelled=unlabelled,
            split=split,
        ),
        format=format,
        skip_bad=skip_bad,
        infer_classes=infer_classes,
    )
    kept, label_set = read_kept(path, reading, internal=internal, cache=cache, memory_limit=memory_limit)
    return Images(
        pixels=kept.columns["pixels"],
        labels=kept.columns["labels"],
        classes=label_set,
        persons=kept.columns.get("persons"),
        set_aside=tuple(kept.facts["set_aside"]) if internal else (),
    )


class PublicImages(Images):
    """Images that need no protection: synthetic ones, or a public collection. Length and pixels are there to see."""

    def __len__(self) -> int:
        return len(self.pixels)

    @classmethod
    def read(cls, path: str | Path, **options: Unpack[Options]) -> PublicImages:
        """As ``read``; since nothing is private, errors name files and the label set may come from the data."""
        options["internal"] = True
        found = read(path, infer_classes=True, **options)
        return cls(found.pixels, found.labels, found.classes, found.persons, found.set_aside)


class PrivateImages(PrivateRecords):
    """Images that need protection. Read them from files or wrap arrays; then only a Curator can ask about them."""

    set_aside: tuple[str, ...] = ()

    @classmethod
    def from_arrays(
        cls,
        pixels: np.ndarray,
        labels: np.ndarray | None = None,
        *,
        classes: Sequence[str] | int | None = None,
        persons: np.ndarray | None = None,
        declared_size: int | None = None,
    ) -> PrivateImages:
        """``pixels`` as ``[N, H, W]``, ``[N, H, W, C]`` or ``[N, C, H, W]``; ``classes`` as names or a number."""
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
    def from_images(cls, images: Images, *, declared_size: int | None = None) -> PrivateImages:
        """What ``read`` returned, put behind the door."""
        private = cls(
            images.pixels, images.labels, classes=images.classes, persons=images.persons, declared_size=declared_size
        )
        private.set_aside = images.set_aside
        return private

    @classmethod
    def read(cls, path: str | Path, *, declared_size: int | None = None, **options: Unpack[Options]) -> PrivateImages:
        """Any collection, as ``read`` takes it."""
        return cls.from_images(read(path, **options), declared_size=declared_size)

    @classmethod
    def from_folder(
        cls, path: str | Path, *, declared_size: int | None = None, **options: Unpack[Options]
    ) -> PrivateImages:
        """An image folder: each class is a sub-folder, and the folders' names are the public label set."""
        options["format"] = "folder"
        return cls.read(path, declared_size=declared_size, **options)
