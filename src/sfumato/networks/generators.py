"""Generators from a latent code and a label to an image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvGenerator(nn.Module):
    """Latent code and one-hot label, two linear layers, two upsamplings with convolutions, pixels in 0..1.

    The code is drawn inside, with torch's global generator.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, latent_dim: int = 5, width: int = 16) -> None:
        super().__init__()
        channels, height, width_pixels = shape
        if height % 4 or width_pixels % 4:
            raise ValueError(f"the image size must be a multiple of 4, not {height}×{width_pixels}; use --size")
        self.classes, self.latent_dim = classes, latent_dim
        self.seed = (2 * width, height // 4, width_pixels // 4)
        flat = self.seed[0] * self.seed[1] * self.seed[2]
        self.linear = nn.Sequential(
            nn.Linear(latent_dim + classes, 200), nn.LayerNorm(200), nn.ReLU(), nn.Linear(200, flat), nn.ReLU()
        )
        self.first = nn.Conv2d(2 * width, width, 5, padding=2)
        self.second = nn.Conv2d(width, channels, 5, padding=2)

    def forward(self, labels: Tensor) -> Tensor:
        weight = self.second.weight
        code = torch.randn(len(labels), self.latent_dim, device=weight.device, dtype=weight.dtype)
        one_hot = F.one_hot(labels, self.classes).to(weight)
        hidden = self.linear(torch.cat([code, one_hot], dim=1)).view(-1, *self.seed)
        hidden = torch.relu(self.first(F.interpolate(hidden, scale_factor=2.0, mode="bilinear")))
        return torch.sigmoid(self.second(F.interpolate(hidden, scale_factor=2.0, mode="bilinear")))
