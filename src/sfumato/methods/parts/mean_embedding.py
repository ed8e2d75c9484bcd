"""Mean embeddings in random Fourier features (Rahimi and Recht, 2007), and the distance to them."""

from __future__ import annotations

import torch
from torch import Tensor


class FourierFeatures:
    """Random Fourier features of a Gaussian kernel. Every embedding has norm 1, so a sum of them needs no clipping."""

    def __init__(self, inputs: int, *, features: int, length_scale: float, device: torch.device) -> None:
        """Draw ``features // 2`` frequencies with torch's global generator, which is public."""
        self.count = features // 2
        self.frequencies = torch.randn(inputs, self.count, device=device) / length_scale

    def __call__(self, images: Tensor) -> Tensor:
        """Embeddings ``[B, features]`` of the images."""
        angles = images.flatten(1) @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=1) / self.count**0.5


def unbiased_distance(embedded: Tensor, target: Tensor) -> Tensor:
    """Unbiased estimate of Σ over classes of ‖E φ − target‖², up to a constant.

    Args:
        embedded: Embeddings of norm 1, ``[classes, images, features]``.
        target: Mean embeddings, ``[classes, features]``.
    """
    classes, images = embedded.shape[:2]
    mean = embedded.mean(1)
    # The pairs i = i of ‖mean‖² are 1 each and are taken out; they would reward images for being alike.
    own = (images * mean.square().sum() - classes) / (images - 1)
    return own - 2 * (mean * target).sum()
