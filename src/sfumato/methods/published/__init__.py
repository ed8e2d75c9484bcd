"""The papers' own algorithms, one file each, on raw records; their cards state no guarantee."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sfumato.privacy import Curator


class RawRecords:
    """The records themselves, as tensors. Taking them is an event on the ledger that ends every guarantee."""

    def __init__(self, curator: Curator, reason: str) -> None:
        """Open the records; ``reason`` goes on the ledger and the card."""
        pixels, labels = curator.open(reason)
        self.device = curator.device
        self.images = torch.as_tensor(pixels)
        self.labels = torch.as_tensor(np.asarray(labels, dtype=np.int64))
        self.scale = 255.0 if pixels.dtype.kind == "u" else 1.0

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images in 0..1 and labels of these rows, on the device."""
        images = self.images[rows].to(self.device, torch.get_default_dtype()) / self.scale
        return images, self.labels[rows].to(self.device)
