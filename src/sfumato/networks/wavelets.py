"""Fixed wavelet features for classification: the modulus of oriented wavelets, averaged over a coarse grid.

The features are constants, so they cost no privacy, and a linear layer on top has few parameters for the noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.pixels import Shape

_ORIENTATIONS = 8


class Wavelets(nn.Module):
    """Images ``[B, C, H, W]`` to features ``[B, size]`` of norm √size, without parameters.

    There is one energy for each channel, octave, orientation and cell of a ``grid`` × ``grid`` grid. Wavelengths go
    from four pixels up to about half of the side.
    """

    filters: Tensor

    def __init__(self, shape: Shape, *, grid: int = 7) -> None:
        super().__init__()
        channels, height, width = shape
        self.grid = min(grid, height, width)
        self.octaves = max(1, int(math.log2(min(height, width) / 7.0)))
        # The bands of wavelets, and one of brightness.
        self.size = channels * (self.octaves * _ORIENTATIONS + 1) * self.grid**2
        self.register_buffer("filters", _filters(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        filters = self.filters.to(images)
        rows, channels, height, width = images.shape
        plane = images.reshape(rows * channels, 1, height, width)
        bands = [self._pool(plane)]
        for octave in range(self.octaves):
            reach = filters.shape[-1] // 2
            waves = F.conv2d(F.pad(plane, [reach] * 4, mode="replicate"), filters)
            energy = (waves[:, ::2].square() + waves[:, 1::2].square() + 1e-12).sqrt()
            bands.append(self._pool(energy))
            if octave + 1 < self.octaves:
                plane = F.avg_pool2d(plane, 2, ceil_mode=True)
        # The root compresses the range of energies; the constant keeps its derivative finite.
        flat = (torch.cat(bands, dim=1).reshape(rows, -1) + 1e-6).sqrt()
        flat = flat - flat.mean(1, keepdim=True)
        return flat / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()

    def _pool(self, planes: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(planes, self.grid)


def _filters() -> Tensor:
    """Morlet-like filters of wavelength 4 and mean 0, real and imaginary parts, ``[2 · orientations, 1, 7, 7]``."""
    axis = torch.arange(-3.0, 4.0)
    down, right = torch.meshgrid(axis, axis, indexing="ij")
    envelope = torch.exp(-(down.square() + right.square()) / (2 * 1.5**2))
    found = []
    for orientation in range(_ORIENTATIONS):
        angle = math.pi * orientation / _ORIENTATIONS
        phase = (math.cos(angle) * right + math.sin(angle) * down) * (2 * math.pi / 4.0)
        for wave in (torch.cos(phase), torch.sin(phase)):
            real = envelope * wave
            real = real - envelope * real.sum() / envelope.sum()
            found.append(real / real.abs().sum())
    return torch.stack(found)[:, None]


class LabelFilter(nn.Module):
    """Logits of the classes of an image in 0..1: one linear layer on wavelet features, which starts at zero."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.wavelets = Wavelets(shape)
        self.linear = nn.Linear(self.wavelets.size, classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.wavelets(images) / math.sqrt(self.wavelets.size))
        return logits
