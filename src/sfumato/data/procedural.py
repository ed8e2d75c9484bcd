"""Random images that are made of nothing but random numbers: strokes, shapes, textures and dead leaves.

They are public by construction: no photograph, drawing or data set is behind them. A network that has learned to
denoise them knows edges, smooth areas and bright things on dark ground before it sees a private image. Everything comes
from torch's global generator, so the images repeat for the same seed.

- *strokes*: one to four quadratic Bézier curves of random thickness and brightness, bright on dark;
- *shapes*: two to six ellipses and rectangles in a bright cluster around the middle, half of the images mirrored;
- *textures*: noise with a power spectrum of 1/f^a, a uniform in 0.5 to 3, or a plane wave, or their mixture;
- *dead leaves*: discs with radii from a 1/r³ law and uniform grey values, each covering those before it (Lee, Mumford
  and Huang, 2001).

Colour images have a random colour for each object.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Shape = tuple[int, int, int]

_LEAVES = 40
_SEGMENTS = 16  # straight pieces of a Bézier curve
_SHAPES = 6
_STROKES = 4
_CHUNK = 4096  # images at a time, which bounds the memory


def procedural_images(count: int, *, shape: Shape, device: torch.device | str = "cpu") -> Tensor:
    """``[count, *shape]`` in 0..1, a quarter of each kind in random order."""
    kinds: tuple[Callable[[int, Shape, torch.device], Tensor], ...] = (strokes, shapes, textures, dead_leaves)
    target = torch.device(device)
    parts = [torch.zeros(0, *shape, device=target)]
    for number, kind in enumerate(kinds):
        left = (count + len(kinds) - 1 - number) // len(kinds)
        for start in range(0, left, _CHUNK):
            parts.append(kind(min(_CHUNK, left - start), shape, target).clamp(0.0, 1.0))
    return torch.cat(parts)[torch.randperm(count, device=target)]


def strokes(count: int, shape: Shape, device: torch.device) -> Tensor:
    """Quadratic Bézier curves with round ends."""
    down, right = _grid(shape, device)
    canvas = torch.zeros(count, *shape, device=device)
    used = torch.randint(1, _STROKES + 1, (count,), device=device)
    for stroke in range(_STROKES):
        ends = 0.15 + 0.7 * torch.rand(count, 3, 2, device=device)
        width = 0.025 + 0.06 * torch.rand(count, 1, 1, device=device)
        distance = torch.full((count, *shape[1:]), 9.0, device=device)
        start = ends[:, 0]
        for t in torch.linspace(0.0, 1.0, _SEGMENTS + 1).tolist()[1:]:
            point = (1 - t) ** 2 * ends[:, 0] + 2 * t * (1 - t) * ends[:, 1] + t**2 * ends[:, 2]
            distance = torch.minimum(distance, _from_segment(down, right, start, point))
            start = point
        edge = 0.5 / max(shape[1:])
        ink = torch.sigmoid((width - distance.sqrt()) / edge) * (stroke < used)[:, None, None]
        canvas = torch.maximum(canvas, ink[:, None] * (0.4 + 0.6 * _colour(count, shape, device)))
    return canvas


def shapes(count: int, shape: Shape, device: torch.device) -> Tensor:
    """Ellipses and rectangles around the middle, each painted over those before it; half of the images mirrored."""
    down, right = _grid(shape, device)
    canvas = torch.zeros(count, *shape, device=device)
    used = torch.randint(2, _SHAPES + 1, (count,), device=device)
    for number in range(_SHAPES):
        centre = 0.5 + 0.18 * torch.randn(count, 2, 1, 1, device=device)
        size = 0.06 + 0.3 * torch.rand(count, 2, 1, 1, device=device)
        angle = math.pi * torch.rand(count, 1, 1, device=device) * (torch.rand(count, 1, 1, device=device) < 0.5)
        y, x = down - centre[:, 0], right - centre[:, 1]
        along, across = (
            (angle.cos() * x + angle.sin() * y) / size[:, 1],
            (angle.cos() * y - angle.sin() * x) / size[:, 0],
        )
        round_ = torch.rand(count, 1, 1, device=device) < 0.5
        reach = torch.where(round_, (along.square() + across.square()).sqrt(), torch.maximum(along.abs(), across.abs()))
        mask = torch.sigmoid((1.0 - reach) * 12.0) * (number < used)[:, None, None]
        canvas = canvas + mask[:, None] * (_colour(count, shape, device) - canvas)
    shading = 1.0 - 0.3 * _plane_waves(count, shape, device) * torch.rand(count, 1, 1, 1, device=device)
    mirrored = torch.where(right[None, None] < 0.5, canvas, canvas.flip(3))
    return torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.5, canvas, mirrored) * shading


def textures(count: int, shape: Shape, device: torch.device) -> Tensor:
    """Coloured noise mixed with a plane wave."""
    height, width = shape[1:]
    frequency = (
        torch.fft.fftfreq(height, device=device)[:, None].square() + torch.fft.rfftfreq(width, device=device).square()
    )
    power = 0.5 + 2.5 * torch.rand(count, 1, 1, 1, device=device)
    decay = (frequency + 1.0 / (height * width)) ** (-power / 2.0)
    noise = torch.fft.irfft2(torch.fft.rfft2(torch.randn(count, *shape, device=device)) * decay, s=(height, width))
    noise = 0.5 + 0.25 * (noise - noise.mean((1, 2, 3), keepdim=True)) / noise.std((1, 2, 3), keepdim=True)
    share = torch.rand(count, 1, 1, 1, device=device)
    return share * noise + (1.0 - share) * _plane_waves(count, shape, device) * _colour(count, shape, device)


def dead_leaves(count: int, shape: Shape, device: torch.device) -> Tensor:
    """Discs that cover each other."""
    down, right = _grid(shape, device)
    canvas = _colour(count, shape, device).expand(count, *shape)
    for _ in range(_LEAVES):
        centre = torch.rand(count, 2, 1, 1, device=device)
        # The density of radii is proportional to 1/r³ between .05 and .4, drawn by inversion.
        uniform = torch.rand(count, 1, 1, device=device)
        radius = (uniform / 0.05**2 + (1.0 - uniform) / 0.4**2).rsqrt()
        inside = (down - centre[:, 0]).square() + (right - centre[:, 1]).square() < radius.square()
        canvas = torch.where(inside[:, None], _colour(count, shape, device), canvas)
    return canvas


def _grid(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Centres of the pixels in 0..1, ``[H, W]`` each."""
    down = (torch.arange(shape[1], device=device) + 0.5) / shape[1]
    right = (torch.arange(shape[2], device=device) + 0.5) / shape[2]
    return down[:, None].expand(shape[1:]), right[None, :].expand(shape[1:])


def _from_segment(down: Tensor, right: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """The squared distance of every pixel from straight lines between points ``[count, 2]``, ``[count, H, W]``."""
    y, x = down - start[:, 0, None, None], right - start[:, 1, None, None]
    rise, run = (end - start)[:, :, None, None].unbind(1)
    along = ((y * rise + x * run) / (rise.square() + run.square()).clamp(min=1e-12)).clamp(0.0, 1.0)
    return (y - along * rise).square() + (x - along * run).square()


def _colour(count: int, shape: Shape, device: torch.device) -> Tensor:
    """``[count, channels, 1, 1]``: a brightness, and in colour images a tint around it."""
    grey = torch.rand(count, 1, 1, 1, device=device)
    tint = 0.2 * torch.randn(count, shape[0], 1, 1, device=device) if shape[0] > 1 else 0.0
    return (grey + tint).clamp(0.0, 1.0)


def _plane_waves(count: int, shape: Shape, device: torch.device) -> Tensor:
    """``[count, 1, H, W]`` in 0..1: a sine of one to eight periods in a random direction, more or less sharp."""
    down, right = _grid(shape, device)
    angle, phase, periods, steep = torch.rand(4, count, 1, 1, 1, device=device)
    place = (angle * math.pi).cos() * right + (angle * math.pi).sin() * down
    wave = torch.sin(2.0 * math.pi * ((1.0 + 7.0 * periods) * place + phase))
    return torch.sigmoid((1.0 + 9.0 * steep) * wave)
