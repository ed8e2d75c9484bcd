"""The image sets of a run: synthetic and real with one label set, and the baselines made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.data.images import Images
from sfumato.release.synthetic import SyntheticImages

SPLIT_SEED = 0
"""Fixes subsamples, halves and noise, so that their features can be found in the cache again."""


@dataclass(frozen=True)
class Labelled:
    """Images whose labels are numbers into the run's one label set."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def first(self, count: int | None) -> Labelled:
        """At most ``count`` random images: the first of one fixed order, so that a smaller draw is part of a larger."""
        return self if count is None or count >= len(self) else self._rows(self._order()[:count])

    def halves(self, count: int | None) -> tuple[Labelled, Labelled]:
        """At most ``count`` images of each of two disjoint halves; the left ones are those of ``first``."""
        middle = len(self) // 2
        count = middle if count is None else min(count, middle)
        order = self._order()
        return self._rows(order[:count]), self._rows(order[middle : middle + count])

    def _order(self) -> np.ndarray:
        return np.random.default_rng(SPLIT_SEED).permutation(len(self))

    def _rows(self, rows: np.ndarray) -> Labelled:
        rows = np.sort(rows)
        return Labelled(self.pixels[rows], self.labels[rows])


def aligned(given: Images | SyntheticImages, classes: Sequence[str], shape: tuple[int, ...], *, name: str) -> Labelled:
    """Labels renumbered into ``classes`` by name."""
    images = Images(given.images, given.labels, given.classes) if isinstance(given, SyntheticImages) else given
    if images.pixels.dtype != np.uint8 or images.pixels.ndim != 4 or images.pixels.shape[1:] != shape:
        raise ValueError(
            f"{name} images must be uint8 of shape {shape} (channels, height, width) like the real training images, "
            f"not {images.pixels.dtype} {images.pixels.shape[1:]}; read both with the same size and colour"
        )
    if len(images.pixels) != len(images.labels):
        raise ValueError(f"{name}: there must be one label for each image; the two counts differ")
    if len(images.pixels) < 2:
        raise ValueError(f"{name}: an evaluation needs at least two images")
    if tuple(images.classes) == tuple(classes):
        return Labelled(images.pixels, np.asarray(images.labels, dtype=np.int64))
    unknown = [entry for entry in images.classes if entry not in classes]
    if unknown:
        raise ValueError(
            f"{name} images declare the classes {unknown}, which the real data does not have; its label set is "
            f"{list(classes)}. Class names must agree, their order need not"
        )
    places = np.array([list(classes).index(entry) for entry in images.classes], dtype=np.int64)
    return Labelled(images.pixels, places[np.asarray(images.labels, dtype=np.int64)])


def uniform_noise(count: int, classes: int, shape: tuple[int, ...]) -> Labelled:
    """Pixels and labels without any knowledge of the data: the worst a generator should do."""
    random = np.random.default_rng(SPLIT_SEED)
    return Labelled(
        random.integers(0, 256, size=(count, *shape), dtype=np.uint8), np.arange(count, dtype=np.int64) % classes
    )
