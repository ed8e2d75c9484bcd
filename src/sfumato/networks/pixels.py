"""Operations on pixels and labels that every network shares. All of them work row by row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


def valid_pixels(images: Tensor) -> Tensor:
    """Images with every value brought into 0..1: NaN becomes 0, infinities and values outside become the nearest end.

    A record with such values would otherwise overflow, and its contribution, or its whole shard's, would be lost.
    """
    return torch.nan_to_num(images).clamp(0.0, 1.0)


def one_hot(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """One-hot labels ``[B, classes]`` in the data type and on the device of ``like``.

    Unlike ``torch.nn.functional.one_hot`` it does not look at the largest label, so ``torch.func`` can trace it.
    """
    return (labels[:, None] == torch.arange(classes, device=labels.device)).to(like)


def per_row(values: Tensor) -> Tensor:
    """One number for each row, ``[B]``, in the shape that broadcasts with images, ``[B, 1, 1, 1]``."""
    return values.view(-1, 1, 1, 1)


def sharpen(images: Tensor, factor: float) -> Tensor:
    """Smooth the images, then extrapolate by ``factor`` away from a smoother version; a factor of 1 only smooths."""
    smooth = _smooth(images)
    smoother = _smooth(smooth)
    return (smoother + factor * (smooth - smoother)).clamp(0.0, 1.0)


def _smooth(images: Tensor) -> Tensor:
    """A 3×3 average in which the centre has five times the weight; the border is replicated."""
    kernel = images.new_ones(1, 1, 3, 3)
    kernel[0, 0, 1, 1] = 5.0
    channels = images.shape[1]
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    return F.conv2d(padded, (kernel / kernel.sum()).expand(channels, 1, 3, 3), groups=channels)
