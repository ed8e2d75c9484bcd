"""What is known about the classes' summed features, and how far a batch of fakes is from it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.privacy import Counts


class Aggregate(nn.Module):
    """A running average of noisy sums, ``[classes, length]``; their last column counts the rows, ``count`` for each.

    Averaging released answers is free. While the features stay as they are every answer counts alike (``decay`` 1);
    while they move, old answers must fade.
    """

    def __init__(self, classes: int, length: int, *, count: float, decay: float = 1.0) -> None:
        super().__init__()
        self.count, self.decay = count, decay
        self.register_buffer("total", torch.zeros(classes, length))
        self.register_buffer("counted", torch.zeros(classes))
        self.register_buffer("weight", torch.zeros(2))

    def add(self, answer: Tensor, *, rate: float) -> None:
        """One noisy sum over a batch that was drawn at ``rate``."""
        total, counted, weight = (self.get_buffer(name) for name in ("total", "counted", "weight"))
        total.mul_(self.decay).add_(answer / rate)
        counted.add_(answer[:, -1] / (rate * self.count))
        weight.mul_(weight.new_tensor([self.decay, 1.0])).add_(1.0)

    @property
    def counts(self) -> Counts:
        """Noisy class sizes, from all answers: how many rows there are does not change with the features."""
        return Counts(self.get_buffer("counted") / self.get_buffer("weight")[1].clamp(min=1.0))

    @property
    def sizes(self) -> Tensor:
        """Class sizes to divide by: one of which nothing but noise is known does not blow the noise up."""
        counts = self.counts
        return counts.values.clamp(min=max(1.0, counts.total / (100 * len(counts.values))))

    @property
    def means(self) -> Tensor:
        """Each class's mean vector."""
        return self.get_buffer("total") / self.get_buffer("weight")[0].clamp(min=1e-12) / self.sizes[:, None]


def distance(vectors: Tensor, means: Tensor) -> Tensor:
    """Σ over classes of |E v − mean|² less what does not depend on the ``[classes, fakes, length]`` vectors.

    The pairs of a fake with itself are left out: they would reward fakes for being alike.
    """
    fakes = vectors.shape[1]
    total = vectors.sum(1)
    own = (total.square().sum(1) - vectors.square().sum((1, 2))) / (fakes * (fakes - 1))
    return (own - 2.0 * (total / fakes * means).sum(1)).sum()
