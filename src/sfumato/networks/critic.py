"""A small conditional Wasserstein critic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
