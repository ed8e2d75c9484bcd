"""Two types that must not be confused: images that need protection, and images that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sfumato.privacy.records import PrivateRecords


@dataclass(frozen=True)
class Images:
    """What a reader returns: decoded pixels ``uint8 [N, C, H, W]`` (array or memory map), labels ``int64 [N]``,
    the label set, and each image's person 0..P-1 when the data names persons."""

    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    persons: np.ndarray | None = None


class PublicImages(Images):
    """Images that need no protection: synthetic ones, or a public collection. Length and pixels are there to see."""

    def __len__(self) -> int:
        return len(self.pixels)


class PrivateImages(PrivateRecords):
    """Images that need protection. Read them from files or wrap arrays; then only a Curator can ask about them."""

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
