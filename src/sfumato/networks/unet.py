"""A class-conditional U-Net for images of 28 to 128 pixels, made of layers whose per-record gradients are known.

Linear layers, convolutions and embeddings carry all parameters. Normalisation acts within one image, so that no row of
a batch can change the output of another.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, int, int]

_FREQUENCIES = 16
_COARSEST = 8  # pixels a side at the lowest resolution, at most


def noise_features(log_sigma: Tensor) -> Tensor:
    """Sinusoidal features of the logarithm of the noise level, ``[rows, 32]``."""
    powers = torch.arange(_FREQUENCIES, device=log_sigma.device, dtype=log_sigma.dtype)
    angles = (log_sigma / 4.0)[:, None] * (math.pi / 4.0 * 1.35**powers)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def use_channels_last(network: nn.Module) -> None:
    """Store the weights of convolutions channels-last, which tensor cores read fastest; the values stay the same."""
    for weight in network.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def _norm(channels: int) -> nn.GroupNorm:
    """Up to eight groups. Without scales of its own: they would add noise, and the next layer can do their work."""
    return nn.GroupNorm(math.gcd(channels, min(8, max(1, channels // 4))), channels, affine=False)


class ResidualBlock(nn.Module):
    """Two convolutions; between them the noise level scales and shifts every channel and the label shifts it."""

    def __init__(self, inputs: int, outputs: int, *, embedding: int, classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(inputs), _norm(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.condition = nn.Linear(embedding, 2 * outputs)
        self.label = nn.Embedding(classes, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.normal_(self.label.weight, std=0.5)
        # Small, so that at the start a block passes on what it gets.
        nn.init.normal_(self.conv2.weight, std=0.3 / math.sqrt(9 * outputs))

    def forward(self, hidden: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
        scale, shift = self.condition(embedding).chunk(2, dim=1)
        shift = shift + self.label(labels)
        inner = self.norm2(self.conv1(F.silu(self.norm1(hidden))))
        inner = F.silu(inner * (1.0 + scale[:, :, None, None]) + shift[:, :, None, None])
        output: Tensor = self.skip(hidden) + self.conv2(inner)
        return output


class UNet(nn.Module):
    """``forward(images, log_sigma, labels)`` of the images' shape.

    The resolution is halved until no side is longer than eight pixels. The highest has ``width`` channels and the
    others twice as many, with ``blocks`` residual blocks each on the way down and on the way up. A ``patch`` of 2
    makes 2 × 2 pixels one position, which is about four times as fast.
    """

    def __init__(self, shape: Shape, classes: int, *, width: int, patch: int = 1, blocks: int = 1) -> None:
        super().__init__()
        self.shape, self.patch = shape, patch
        channels, side = shape[0] * patch**2, -(-max(shape[1:]) // patch)
        levels = 1 + max(0, math.ceil(math.log2(side / _COARSEST)))
        widths, embedding = [width] + [2 * width] * (levels - 1), 4 * width
        conditioned = {"embedding": embedding, "classes": classes}
        self.noise = nn.Linear(2 * _FREQUENCIES, embedding)
        self.label = nn.Embedding(classes, embedding)
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        at, skips = width, [width]
        for outputs in widths:
            self.down.append(nn.ModuleList())
            for _ in range(blocks):
                self.down[-1].append(ResidualBlock(at, outputs, **conditioned))  # type: ignore[operator]
                at = outputs
                skips.append(at)
        self.middle = ResidualBlock(at, at, **conditioned)
        for outputs in reversed(widths):
            self.up.append(nn.ModuleList())
            for _ in range(blocks):
                self.up[-1].append(ResidualBlock(at + skips.pop(), outputs, **conditioned))  # type: ignore[operator]
                at = outputs
        self.norm = _norm(at)
        self.leave = nn.Conv2d(at, channels, 3, padding=1)
        nn.init.normal_(self.leave.weight, std=0.1 / math.sqrt(9 * at))

    def forward(self, images: Tensor, log_sigma: Tensor, labels: Tensor) -> Tensor:
        dtype = self.enter.weight.dtype
        embedding = F.silu(self.noise(noise_features(log_sigma).to(dtype)) + self.label(labels))
        height, width = self.shape[1:]
        padded = F.pad(images.to(dtype), (0, -width % self.patch, 0, -height % self.patch))
        hidden, skips = self.enter(F.pixel_unshuffle(padded, self.patch)), []
        for level, down in enumerate(self.down):
            hidden = F.avg_pool2d(hidden, 2, ceil_mode=True) if level else hidden
            for block in down:  # type: ignore[attr-defined]
                hidden = block(hidden, embedding, labels)
                skips.append(hidden)
        hidden = self.middle(hidden, embedding, labels)
        for up in self.up:
            if hidden.shape[-2:] != skips[-1].shape[-2:]:
                hidden = F.interpolate(hidden, size=skips[-1].shape[-2:])
            for block in up:  # type: ignore[attr-defined]
                hidden = block(torch.cat([hidden, skips.pop()], dim=1), embedding, labels)
        output = F.pixel_shuffle(self.leave(F.silu(self.norm(hidden))), self.patch)
        return output[..., :height, :width]
