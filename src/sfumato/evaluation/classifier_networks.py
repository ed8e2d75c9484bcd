"""The small classifiers of the papers: an MLP and three convolutional networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
"""Channels, height, width."""


class HalfDropout(nn.Module):
    """Dropout with probability ½ that takes eight random bits from each byte of one random word.

    On a CPU, torch's own dropout takes two thirds of the time of the small network that it is used in.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Keep each element with probability ½ and double it; the identity in evaluation mode."""
        if not self.training:
            return values
        values = values.contiguous(memory_format=torch.channels_last)
        words = torch.randint(-(2**63), 2**63 - 1, (-(-values.numel() // 8),), device=values.device)
        # A mask in the memory order of the values: multiplying across layouts is slow.
        kept = (words.view(torch.uint8) < 128).as_strided(values.shape, values.stride())
        return values * (kept * 2.0)


def mlp(shape: Shape, classes: int) -> nn.Module:
    """d-100-K with ReLU."""
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 100), nn.ReLU(), nn.Linear(100, classes))


def strided_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two strided convolutions with dropout before the ReLU, then one linear layer."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        HalfDropout(),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        HalfDropout(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * -(-height // 4) * -(-width // 4), classes),
    )


def pooled_cnn(shape: Shape, classes: int) -> nn.Module:
    """Three convolutions, two poolings, two linear layers: our reading of DPPM's figure 4(c)."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
    )
    return _with_head(body, shape, classes)


def small_pooled_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two padded convolutions, each pooled, and two linear layers."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return _with_head(body, shape, classes)


def _with_head(body: nn.Module, shape: Shape, classes: int) -> nn.Module:
    with torch.inference_mode():
        width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body, nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, classes))
