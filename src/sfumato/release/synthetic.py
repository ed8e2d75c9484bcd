"""Synthetic images together with the card of the release that they were drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sfumato.release.card import Card


@dataclass(frozen=True, eq=False)
class SyntheticImages:
    """Images drawn from a release. They carry its card, so that the guarantee goes wherever they go.

    ``images, labels = release.sample(100)`` unpacks the two arrays.

    Attributes:
        images: Pixels, ``uint8 [N, C, H, W]``.
        labels: Class numbers, ``int64 [N]``.
        card: The card of the release, which also names the classes.
    """

    images: np.ndarray
    labels: np.ndarray
    card: Card

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[1] not in (1, 3):
            raise ValueError(f"images must be uint8 [N, 1 or 3, H, W], not {self.images.dtype} {self.images.shape}")
        if self.labels.shape != (len(self.images),) or not np.issubdtype(self.labels.dtype, np.integer):
            raise ValueError("labels must be one whole number for each image")
        if self.images.shape[1:] != self.card.shape:
            raise ValueError(f"the card is that of images {self.card.shape}, not {self.images.shape[1:]}")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(f"labels must be numbers 0 to {len(self.classes) - 1}, one for each class")

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class, in the order of the labels."""
        return self.card.classes

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Iterate over the two arrays, not over the images: ``images, labels = synthetic``."""
        return iter((self.images, self.labels))
