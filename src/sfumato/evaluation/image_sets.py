"""The image sets of an evaluation: synthetic and real ones with one label set, subsets, splits and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sfumato.data.images import Images
from sfumato.release.synthetic import SyntheticImages

SPLIT_SEED = 0
"""Fixes subsets, halves and noise, so that their features can be found in the cache again."""

AnyImages = Images | SyntheticImages


@dataclass(frozen=True)
class LabelledImages:
    """Images whose labels are numbers into the evaluation's one label set."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def first(self, count: int | None) -> LabelledImages:
        """At most ``count`` random images: the first of one fixed order, so that a smaller set is part of a larger."""
        return self if count is None or count >= len(self) else self._rows(self._order()[:count])

    def halves(self, count: int | None) -> tuple[LabelledImages, LabelledImages]:
        """At most ``count`` images of each of two disjoint halves; the first ones are those of ``first``."""
        middle = len(self) // 2
        count = middle if count is None else min(count, middle)
        order = self._order()
        return self._rows(order[:count]), self._rows(order[middle : middle + count])

    def _order(self) -> np.ndarray:
        return np.random.default_rng(SPLIT_SEED).permutation(len(self))

    def _rows(self, rows: np.ndarray) -> LabelledImages:
        rows = np.sort(rows)
        return LabelledImages(self.pixels[rows], self.labels[rows])


def aligned(given: AnyImages, classes: Sequence[str], shape: tuple[int, ...], *, name: str) -> LabelledImages:
    """The images with their labels renumbered into ``classes`` by name."""
    pixels = given.images if isinstance(given, SyntheticImages) else given.pixels
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != shape:
        raise ValueError(
            f"{name} images must be uint8 of shape {shape} (channels, height, width) like the real training images, "
            f"not {pixels.dtype} {pixels.shape[1:]}; read both with the same size and colour"
        )
    if len(pixels) != len(given.labels):
        raise ValueError(f"{name}: there must be one label for each image; the two counts differ")
    if len(pixels) < 2:
        raise ValueError(f"{name}: an evaluation needs at least two images")
    labels = np.asarray(given.labels, dtype=np.int64)
    if tuple(given.classes) == tuple(classes):
        return LabelledImages(pixels, labels)
    unknown = [entry for entry in given.classes if entry not in classes]
    if unknown:
        raise ValueError(
            f"{name} images declare the classes {unknown}, which the real data does not have; its label set is "
            f"{list(classes)}. Class names must agree, their order need not"
        )
    places = np.array([list(classes).index(entry) for entry in given.classes], dtype=np.int64)
    return LabelledImages(pixels, places[labels])


def uniform_noise(count: int, classes: int, shape: tuple[int, ...]) -> LabelledImages:
    """Pixels and labels that know nothing of the data: a baseline that any generator should exceed."""
    random = np.random.default_rng(SPLIT_SEED)
    return LabelledImages(
        random.integers(0, 256, size=(count, *shape), dtype=np.uint8), np.arange(count, dtype=np.int64) % classes
    )


def last_of_each_class_first(labels: np.ndarray) -> torch.Tensor:
    """The numbers of labelled images from the last of each class to the first, whatever the order of the classes."""
    order = np.argsort(labels[::-1], kind="stable")
    shares = np.concatenate([np.arange(size) / size for size in np.bincount(labels) if size])
    return torch.from_numpy(len(labels) - 1 - order[np.argsort(shares, kind="stable")])
