"""The private collection as the Curator holds it: pixels, labels and persons, without a public length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class PrivateRecords:
    """Images behind the door.

    What is public is said when it is built: the image shape, the label set and, if the owner wishes, a declared
    size. The number of records, their order and their values are private, so there is no length, no iteration
    and no telling ``repr``.

    ``pixels`` is ``[N, C, H, W]``, ``uint8`` (0..255) or floating (0..1); a memory map does as well as an array.
    ``persons`` gives each image's owner as a number 0..P-1; without it every image is its own unit.
    """

    def __init__(
        self,
        pixels: np.ndarray,
        labels: np.ndarray | None = None,
        *,
        classes: Sequence[str] = ("all",),
        persons: np.ndarray | None = None,
        declared_size: int | None = None,
    ) -> None:
        if pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
            raise ValueError("pixels must be [images, 1 or 3 channels, height, width]")
        if pixels.dtype != np.uint8 and not np.issubdtype(pixels.dtype, np.floating):
            raise ValueError(f"pixels must be uint8 or floating, not {pixels.dtype}")
        labels = np.zeros(len(pixels), dtype=np.int64) if labels is None else labels
        if len(labels) != len(pixels):
            raise ValueError("there must be one label for each image; the two counts differ")
        if not classes:
            raise ValueError("the label set must name at least one class")
        if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(classes)):
            raise ValueError(f"labels must be numbers 0 to {len(classes) - 1}, one for each declared class")
        if persons is not None and len(persons) != len(pixels):
            raise ValueError("there must be one person for each image; the two counts differ")
        self.shape: tuple[int, int, int] = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        self.classes: tuple[str, ...] = tuple(classes)
        self.declared_size = declared_size
        self._pixels = pixels
        self._labels = labels
        self._persons = persons
        self._masked: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, classes={len(self.classes)})"

    def _fetch(self, rows: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images in 0..1 in torch's default dtype, and labels, for these rows."""
        pixels = torch.from_numpy(np.ascontiguousarray(self._pixels[rows])).to(device)
        scale = 255.0 if pixels.dtype == torch.uint8 else 1.0
        images = pixels.to(torch.get_default_dtype()) / scale
        return images, torch.from_numpy(np.asarray(self._labels[rows], dtype=np.int64)).to(device)
