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
from sfumato.privacy.distributed import World


@dataclass(frozen=True)
class FeatureNetwork:
    """A network from images (uint8 ``[B, C, H, W]``) to features ``[B, dimension]``, with what identifies it."""

    name: str
    hash: str
    dimension: int
    resize: str
    trained_on: str
    module: nn.Module

    @property
    def task(self) -> str:
        """What a progress bar says."""
        return f"features ({self.name})"

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
    """Features of every image, float32 ``[N, dimension]``, on the device. A memory map is read batch by batch.

    Where several processes evaluate together, each takes every n-th batch, and all of them get all features.
    """
    world = World.current()
    device = torch.device(device)
    batch = batch or usual_batch(device)
    features = torch.zeros(len(pixels), network.dimension, device=device)
    for start in range(world.rank * batch, len(pixels), world.size * batch):
        features[start : start + batch] = features_of(network, pixels[start : start + batch], device)
        progress(network.task, min(start + batch, len(pixels)), len(pixels))
    # Every row has the bits of one process, and zeros of the others.
    return world.all_reduce(features.view(torch.int32)).view(torch.float32)


def usual_batch(device: torch.device) -> int:
    """Images that go through a network together."""
    return 512 if device.type == "cuda" else 32


def features_of(network: FeatureNetwork, pixels: np.ndarray, device: torch.device) -> Tensor:
    """Features of one batch, in this process."""
    with torch.inference_mode(), full_precision():
        features: Tensor = network.module.to(device)(torch.tensor(np.asarray(pixels), device=device)).float()
        return features


@contextmanager
def full_precision() -> Iterator[None]:
    """Convolutions in float32: by default torch rounds them to TF32 on a GPU, and FID is compared across machines."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
