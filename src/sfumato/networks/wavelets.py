"""Fixed features for telling classes apart: oriented wavelets, their modulus, averaged over coarse places.

Nothing here is learned, so nothing here is paid for: a linear layer on top has few parameters for the noise to hit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, int, int]
_ORIENTATIONS = 8


class Wavelets(nn.Module):
    """``[rows, *shape] → [rows, size]``, each row of length √size: per octave, orientation and coarse place one energy.

    Octaves go from four pixels a wave up to about half of the side; ``places`` a side, of every channel. No parameters.
    """

    filters: Tensor

    def __init__(self, shape: Shape, *, places: int = 7) -> None:
        super().__init__()
        channels, height, width = shape
        self.places = min(places, height, width)
        self.octaves = max(1, int(math.log2(min(height, width) / 7.0)))
        # Bands of wavelets, and one of brightness.
        self.size = channels * (self.octaves * _ORIENTATIONS + 1) * self.places**2
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
        # The root evens out what is bright and what is faint; the constant keeps its slope finite.
        flat = (torch.cat(bands, dim=1).reshape(rows, -1) + 1e-6).sqrt()
        flat = flat - flat.mean(1, keepdim=True)
        return flat / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()

    def _pool(self, planes: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(planes, self.places)


def _filters() -> Tensor:
    """``[2 · orientations, 1, 7, 7]``: cosine and sine of a wave of four pixels under a bell, of mean zero."""
    axis = torch.arange(-3.0, 4.0)
    down, right = torch.meshgrid(axis, axis, indexing="ij")
    bell = torch.exp(-(down.square() + right.square()) / (2 * 1.5**2))
    found = []
    for orientation in range(_ORIENTATIONS):
        angle = math.pi * orientation / _ORIENTATIONS
        phase = (math.cos(angle) * right + math.sin(angle) * down) * (2 * math.pi / 4.0)
        for wave in (torch.cos(phase), torch.sin(phase)):
            real = bell * wave
            real = real - bell * real.sum() / bell.sum()
            found.append(real / real.abs().sum())
    return torch.stack(found)[:, None]


class LabelFilter(nn.Module):
    """Which class an image in 0..1 shows: one linear layer on wavelets, and a start without opinion."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.wavelets = Wavelets(shape)
        self.linear = nn.Linear(self.wavelets.size, classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.wavelets(images) / math.sqrt(self.wavelets.size))
        return logits
