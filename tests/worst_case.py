"""A small collection full of the units that break things: black, white, NaN, huge, duplicates, a rare class."""

from __future__ import annotations

import numpy as np

from sfumato.data import PrivateImages

CLASSES = ("a", "b", "c", "d")


def worst_case_images(
    count: int = 48, *, size: int = 28, labelled: bool = True, persons: bool = False
) -> PrivateImages:
    """``count`` random images and twelve awkward ones; with ``persons``, three images of one class each."""
    random = np.random.default_rng(7)
    images = random.random((count, 1, size, size), dtype=np.float32)
    labels = np.arange(count) // 3 % 3
    checkerboard = (np.indices((size, size)).sum(0) % 2).astype(np.float32)
    awkward = [
        np.zeros((size, size)),
        np.ones((size, size)),
        checkerboard,
        1 - checkerboard,
        np.full((size, size), 1e30),
        np.full((size, size), np.nan),
        np.full((size, size), np.inf),
        np.full((size, size), -1e5),
        images[0, 0],
        images[0, 0],
        images[1, 0],
        np.eye(size),
    ]
    pixels = np.concatenate([np.stack(awkward)[:, None].astype(np.float32), images])
    # The last awkward one is all there is of class d, and the copy of images[1] has another's label.
    labels = np.concatenate([np.array([0, 0, 1, 1, 1, 0, 1, 2, 0, 0, 2, 3]), labels])
    owners = np.concatenate([np.arange(12), 12 + np.arange(count) // 3]) if persons else None
    if not labelled:
        return PrivateImages(pixels, None, persons=owners)
    return PrivateImages(pixels, labels, classes=CLASSES, persons=owners)
