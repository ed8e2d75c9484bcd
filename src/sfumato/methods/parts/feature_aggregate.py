"""Running averages of noisy feature sums, and the distance of generated images to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.methods.parts.class_gaussians import divisors
from sfumato.privacy import Counts


class FeatureAggregate(nn.Module):
    """A running average of noisy sums ``[classes, length]``, whose last column counts the rows.

    Averaging released answers is post-processing. While the features are fixed every answer has the same weight
    (``decay`` 1); while they are trained, older answers must be forgotten.
    """

    total: Tensor
    counted: Tensor
    weight: Tensor

    def __init__(self, classes: int, length: int, *, count_value: float, decay: float = 1.0) -> None:
        """Start at zero; each row contributes ``count_value`` to the last column."""
        super().__init__()
        self.count_value, self.decay = count_value, decay
        self.register_buffer("total", torch.zeros(classes, length))
        self.register_buffer("counted", torch.zeros(classes))
        self.register_buffer("weight", torch.zeros(2))

    def add(self, answer: Tensor, *, sampling_rate: float) -> None:
        """Add one noisy sum over a batch that was drawn at ``sampling_rate``."""
        self.total.mul_(self.decay).add_(answer / sampling_rate)
        self.counted.add_(answer[:, -1] / (sampling_rate * self.count_value))
        self.weight.mul_(self.weight.new_tensor([self.decay, 1.0])).add_(1.0)

    @property
    def counts(self) -> Counts:
        """Noisy class counts from all answers; the number of rows does not change with the features."""
        return Counts(self.counted / self.weight[1].clamp(min=1.0))

    @property
    def sizes(self) -> Tensor:
        """Class counts to divide by."""
        return divisors(self.counts)

    @property
    def means(self) -> Tensor:
        """The mean feature vector of each class."""
        return self.total / self.weight[0].clamp(min=1e-12) / self.sizes[:, None]


def mean_distance(vectors: Tensor, means: Tensor) -> Tensor:
    """Unbiased estimate of Σ over classes of ‖E v − mean‖², up to a constant.

    Args:
        vectors: Features of generated images, ``[classes, images, length]``. The pairs of an image with itself are
            left out, because they would reward images for being alike.
        means: The means to match, ``[classes, length]``.
    """
    images = vectors.shape[1]
    total = vectors.sum(1)
    own = (total.square().sum(1) - vectors.square().sum((1, 2))) / (images * (images - 1))
    return (own - 2.0 * (total / images * means).sum(1)).sum()
