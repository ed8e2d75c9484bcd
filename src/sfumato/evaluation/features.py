"""Feature networks, on whose outputs FID, KID, precision and recall are computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.evaluation.classifiers import Progress, silent
from sfumato.evaluation.results import FeatureIdentity


@dataclass(frozen=True)
class FeatureNetwork:
    """A network from images (uint8 ``[B, C, H, W]``) to features ``[B, dimension]``, with what identifies it."""

    name: str
    hash: str
    dimension: int
    resize: str
    trained_on: str
    module: nn.Module

    def identity(self) -> FeatureIdentity:
        """What a result says about the network it was measured with."""
        return FeatureIdentity(self.name, self.hash, self.dimension, self.resize, self.trained_on)


def extract(
    network: FeatureNetwork,
    pixels: np.ndarray,
    *,
    device: str | torch.device = "cpu",
    batch: int | None = None,
    progress: Progress = silent,
) -> Tensor:
    """Features of every image, float32 ``[N, dimension]``, on the device. A memory map is read batch by batch."""
    device = torch.device(device)
    batch = batch or (512 if device.type == "cuda" else 32)
    module = network.module.to(device)
    task = f"features ({network.name})"
    parts = []
    with torch.inference_mode(), full_precision():
        for start in range(0, len(pixels), batch):
            images = torch.tensor(np.asarray(pixels[start : start + batch]), device=device)
            parts.append(module(images).float())
            progress(task, min(start + batch, len(pixels)), len(pixels))
    return torch.cat(parts) if parts else torch.zeros(0, network.dimension, device=device)


@contextmanager
def full_precision() -> Iterator[None]:
    """Convolutions in float32: by default torch rounds them to TF32 on a GPU, and FID is compared across machines."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
