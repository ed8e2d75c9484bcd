"""Batches and small networks that the gradient tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients import Batch
from sfumato.privacy.randomness import Draws, Randomness


def make_batch(
    units: int,
    rows: int = 1,
    *,
    shape: tuple[int, ...] = (2, 6, 6),
    classes: int = 3,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Batch:
    """Random images; weights 1 / rows, the last row of every second unit filled up at weight 0."""
    generator = torch.Generator().manual_seed(seed)
    ids, draw = torch.arange(units).repeat_interleave(rows), torch.arange(rows).repeat(units)
    weights = torch.full((units, rows), 1.0 / rows, dtype=dtype)
    if rows > 1:
        weights[::2, -1] = 0.0
    return Batch(
        torch.rand(units * rows, *shape, generator=generator).to(dtype),
        torch.randint(classes, (units,), generator=generator).repeat_interleave(rows),
        Randomness(seed).draws(ids, draw, "test"),
        weights,
    )


def vector(sums: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in sums.values()])


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Distance relative to the second."""
    size = torch.linalg.vector_norm(vector(other)).clamp(min=1e-300)
    return float(torch.linalg.vector_norm(vector(one) - vector(other)) / size)


class Classifier(nn.Module):
    """A convolution, an embedding, a scale and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.embedding = nn.Embedding(3, 4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.linear = nn.Linear(4 * 9, 3)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        h = torch.tanh(self.convolution(images)) * self.scale + self.embedding(labels)[:, :, None, None]
        return self.linear(torch.tanh(h).flatten(1))


def squared_error(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    return (model(images, labels) - random.normal("target", 3).to(images.dtype)).square().sum(1)
