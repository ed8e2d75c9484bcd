"""Fixed features for classification: scattering of second order (Bruna and Mallat, 2013), and moduli of wavelets."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.pixels import Shape

_ORIENTATIONS = 8
_KERNEL = 7
_PLACES = 7  # pixels a side to which the averages are taken


class Scattering(nn.Module):
    """``[rows, *shape]`` to ``[rows, channels, places, places]``: averages, wavelet moduli and moduli of moduli.

    Octave j works on the image halved j times. The second order takes the moduli of octave i through the wavelets of
    every coarser octave. No parameters.
    """

    filters: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels, height, width = shape
        self.octaves = max(1, round(math.log2(min(height, width) / _PLACES)))
        self.places = (min(_PLACES, height), min(_PLACES, width))
        pairs = self.octaves * (self.octaves - 1) // 2
        self.channels = channels * (1 + self.octaves * _ORIENTATIONS + pairs * _ORIENTATIONS**2)
        self.size = self.channels * math.prod(self.places)
        self.register_buffer("filters", _morlet(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        plane = images.flatten(0, 1)[:, None]
        bands = [self._average(plane)]
        moduli: list[Tensor] = []
        for octave in range(self.octaves):
            moduli = [F.avg_pool2d(finer, 2, ceil_mode=True) for finer in moduli]
            bands += [self._average(self._modulus(finer)) for finer in moduli]
            moduli.append(self._modulus(plane))
            bands.append(self._average(moduli[-1]))
            plane = F.avg_pool2d(plane, 2, ceil_mode=True) if octave + 1 < self.octaves else plane
        return torch.cat(bands, dim=1).view(len(images), self.channels, *self.places)

    def _modulus(self, planes: Tensor) -> Tensor:
        """``[rows, maps · orientations, H, W]``."""
        rows, maps, height, width = planes.shape
        reach = _KERNEL // 2
        padded = F.pad(planes.reshape(rows * maps, 1, height, width), [reach] * 4, mode="replicate")
        waves = F.conv2d(padded, self.filters.to(planes)).unflatten(1, (2, _ORIENTATIONS))
        # The constant keeps the gradient of the root finite; it is far below a grey level.
        return (waves.square().sum(1) + 1e-10).sqrt().view(rows, maps * _ORIENTATIONS, height, width)

    def _average(self, planes: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(planes, self.places)


def _morlet() -> Tensor:
    """``[2 · orientations, 1, 7, 7]``: real and imaginary parts of Morlet wavelets with a period of four pixels."""
    axis = torch.arange(_KERNEL, dtype=torch.float64) - _KERNEL // 2
    down, right = torch.meshgrid(axis, axis, indexing="ij")
    real, imaginary = [], []
    for orientation in range(_ORIENTATIONS):
        angle = math.pi * orientation / _ORIENTATIONS
        along, across = (
            math.cos(angle) * right + math.sin(angle) * down,
            math.cos(angle) * down - math.sin(angle) * right,
        )
        envelope = torch.exp(-(along.square() / 1.6**2 + across.square() / 2.2**2) / 2.0)
        cosine = envelope * torch.cos(along * math.pi / 2.0)
        # The mean is taken out, so that a constant image has no first order.
        cosine = cosine - envelope * cosine.sum() / envelope.sum()
        sine = envelope * torch.sin(along * math.pi / 2.0)
        scale = cosine.abs().sum()
        real.append(cosine / scale)
        imaginary.append(sine / scale)
    return torch.stack(real + imaginary)[:, None].float()


class ScatteringClassifier(nn.Module):
    """Class logits of images in 0..1: one linear layer on normalised scattering features; zero at the start.

    Groups of maps are normalised within an image, so that weak bands count as much as strong ones.
    """

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.scattering = Scattering(shape)
        maps = self.scattering.channels
        together = next((size for size in range(3, 10) if maps % size == 0), maps)
        self.norm = nn.GroupNorm(maps // together, maps, affine=False)
        self.linear = nn.Linear(self.scattering.size, classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def features(self, images: Tensor) -> Tensor:
        """``[rows, size]``, each row of length about 1."""
        return self.norm(self.scattering(images)).flatten(1) / math.sqrt(self.scattering.size)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.features(images))
        return logits


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
