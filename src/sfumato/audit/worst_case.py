"""Worst-case units: black, white, checkerboard, huge, NaN, a duplicate, a rare class, a wrong label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.data import PrivateImages
from sfumato.privacy import PrivateRecords
from sfumato.privacy.budget import Unit

CLASSES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Kind:
    """How the pixels and labels of a planted unit are made, and whether there can be only one of its kind."""

    pixels: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """``(own rows, another unit's image) -> rows``, in 0..1 and beyond."""
    label: Callable[[np.ndarray, int, int], np.ndarray] = lambda own, other, classes: own
    """``(own labels, the other unit's label, number of classes) -> labels``."""
    alone: bool = False


def checkerboard(rows: np.ndarray) -> np.ndarray:
    """Alternating black and white pixels in the shape of ``rows``."""
    return np.broadcast_to(np.indices(rows.shape[-2:]).sum(0) % 2, rows.shape)


def _as_it_is(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    return own


KINDS: Mapping[str, Kind] = {
    "black": Kind(lambda own, other: np.zeros_like(own)),
    "white": Kind(lambda own, other: np.ones_like(own)),
    "checkerboard": Kind(lambda own, other: checkerboard(own)),
    "huge": Kind(lambda own, other: np.full_like(own, 1e30)),
    "not a number": Kind(lambda own, other: np.full_like(own, np.nan)),
    "duplicate": Kind(lambda own, other: np.broadcast_to(other, own.shape), lambda own, other, n: own * 0 + other),
    "rare class": Kind(_as_it_is, lambda own, other, classes: own * 0 + classes - 1, alone=True),
    "mislabelled": Kind(_as_it_is, lambda own, other, classes: (own + 1) % classes),
}


def rows_of(private: PrivateRecords, unit: int, kind: Unit) -> np.ndarray:
    """The rows of one unit."""
    if kind == "image":
        return np.array([unit])
    return np.flatnonzero(np.asarray(private._persons) == unit)


def planted(private: PrivateRecords, kind: str, units: Sequence[int], *, unit: Unit = "image") -> PrivateRecords:
    """The collection with these units replaced by this kind; a person is replaced with all images."""
    chosen = KINDS[kind]
    scale = 255.0 if private._pixels.dtype == np.uint8 else 1.0
    pixels = np.asarray(private._pixels, dtype=np.float32) / np.float32(scale)
    labels = np.array(private._labels, dtype=np.int64)
    classes = len(private.classes)
    rows = [rows_of(private, one, unit) for one in units]
    others = np.setdiff1d(np.arange(len(labels)), np.concatenate(rows))
    # Copy an ordinary image: a copy of NaN counts as zero and would show nothing.
    ordinary = [row for row in others if np.isfinite(pixels[row]).all() and np.abs(pixels[row]).max() <= 1]
    model = int(ordinary[0]) if ordinary else int(rows[0][0])
    if chosen.alone and classes > 1:
        labels[labels == classes - 1] = 0
    for own in rows:
        pixels[own] = chosen.pixels(pixels[own], pixels[model])
        labels[own] = chosen.label(labels[own], int(labels[model]), classes)
    return PrivateRecords(
        pixels, labels, classes=private.classes, persons=private._persons, declared_size=private.declared_size
    )


def worst_case_images(
    count: int = 48, *, size: int = 28, labelled: bool = True, persons: bool = False
) -> PrivateImages:
    """``count`` random images and twelve worst-case ones; with ``persons``, three images of one class each."""
    random = np.random.default_rng(7)
    images = random.random((count, 1, size, size), dtype=np.float32)
    labels = np.arange(count) // 3 % 3
    board = (np.indices((size, size)).sum(0) % 2).astype(np.float32)
    special = [
        np.zeros((size, size)),
        np.ones((size, size)),
        board,
        1 - board,
        np.full((size, size), 1e30),
        np.full((size, size), np.nan),
        np.full((size, size), np.inf),
        np.full((size, size), -1e5),
        images[0, 0],
        images[0, 0],
        images[1, 0],
        np.eye(size),
    ]
    pixels = np.concatenate([np.stack(special)[:, None].astype(np.float32), images])
    # The last of these is the only record of class d, and the copy of images[1] has another label.
    labels = np.concatenate([np.array([0, 0, 1, 1, 1, 0, 1, 2, 0, 0, 2, 3]), labels])
    owners = np.concatenate([np.arange(12), 12 + np.arange(count) // 3]) if persons else None
    if not labelled:
        return PrivateImages(pixels, None, persons=owners)
    return PrivateImages(pixels, labels, classes=CLASSES, persons=owners)
