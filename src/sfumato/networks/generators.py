"""Generators from a latent code and a label to an image, and a small conditional Wasserstein critic."""

from __future__ import annotations

from collections.abc import Callable

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


class Critic(nn.Module):
    """Two convolutions of stride 2, and a linear layer with one output for each class beside one for all.

    There is no normalisation, because the gradient penalty is a function of each image by itself.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(shape[0], width, 5, stride=2, padding=2)
        self.second = nn.Conv2d(width, 2 * width, 5, stride=2, padding=2)
        size = [-(-pixels // 4) for pixels in shape[1:]]
        self.last = nn.Linear(2 * width * size[0] * size[1], 1 + classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        convolve = convolution_for(images)
        maps = F.leaky_relu(convolve(self.first, 2.0 * images - 1.0), 0.2)
        values = self.last(F.leaky_relu(convolve(self.second, maps), 0.2).flatten(1))
        return values[:, 0] + torch.gather(values, 1, 1 + labels[:, None])[:, 0]


def convolution_for(images: Tensor) -> Callable[[nn.Conv2d, Tensor], Tensor]:
    """How to convolve under ``vmap``; on a GPU, which runs grouped convolutions one by one, as a product of patches."""
    return by_patches if images.is_cuda else nn.Conv2d.__call__


def by_patches(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """A square convolution, padded by half its size, as one matrix product with all patches of the image."""
    size, stride, edge = layer.kernel_size[0], layer.stride[0], layer.kernel_size[0] // 2
    patches = F.pad(images, (edge, edge, edge, edge)).unfold(2, size, stride).unfold(3, size, stride)
    rows, channels, height, across = patches.shape[:4]
    flat = patches.permute(0, 2, 3, 1, 4, 5).reshape(rows, height * across, channels * size**2)
    product = flat @ layer.weight.flatten(1).t()
    if layer.bias is not None:
        product = product + layer.bias
    return product.transpose(1, 2).reshape(rows, -1, height, across)
