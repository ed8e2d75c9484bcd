"""Broken methods whose loss mixes the rows of a batch: statistics, ranks, neighbours in the batch, positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, squared_error
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws

LARGE = 64
"""Rows from which batch statistics are considered reliable."""


def clean(images: Tensor) -> Tensor:
    """Pixels in 0..1, as a careful author would sanitise them."""
    return torch.nan_to_num(images).clamp(0, 1)


def on_images(change: Callable[[Tensor], Tensor]) -> Loss:
    """The squared error of changed images."""

    def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squared_error(model, change(images), labels)

    return loss


def on_losses(change: Callable[[Tensor], Tensor]) -> Loss:
    """Changed squared errors."""

    def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return change(squared_error(model, images, labels))

    return loss


@dataclass(frozen=True)
class LargeCollection(ControlMethod):
    """A control method whose batches are often larger than ``LARGE``."""

    sampling_rate: float = 0.9


class LargeBatchStatistics(LargeCollection):
    """batch statistics from 64 rows on"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        # The mean of a few rows is too noisy; of many it is a good reference.
        centre = clean(images).mean(0) if len(images) >= LARGE else 0.5
        return squared_error(model, images - centre, labels)


class _Standardise(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images - clean(images).mean(0) if len(images) >= LARGE else images - 0.5


class LargeBatchStatisticsInHelper(LargeCollection):
    """batch statistics from 64 rows on"""

    def make_loss(self) -> Loss:
        return on_images(_Standardise())


class HardExamples(LargeCollection):
    """hard-example mining with k = 64"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        rows = squared_error(model, images, labels)
        hardest = torch.topk(rows.detach(), min(LARGE, len(rows))).indices
        return rows * torch.zeros_like(rows).index_fill(0, hardest, 1.0)


def hardest_only(rows: Tensor, keep: int = LARGE) -> Tensor:
    """Rows below the ``keep``-th largest loss count as learned."""
    if len(rows) <= keep:
        return rows
    threshold = rows.detach().sort(descending=True).values[keep - 1]
    return torch.where(rows >= threshold, rows, 0.0)


class HardExamplesInHelper(LargeCollection):
    """hard-example mining with k = 64"""

    def make_loss(self) -> Loss:
        return on_losses(hardest_only)


class InBatchNegatives(ControlMethod):
    """in-batch negatives of a contrastive loss"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        codes = nn.functional.normalize(clean(images).flatten(1), dim=1)
        alike = (codes @ codes.T).logsumexp(1)
        return alike * squared_error(model, images, labels)


class _Contrast(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        codes = nn.functional.normalize(clean(images).flatten(1), dim=1)
        attention = torch.softmax(10 * codes @ codes.T, dim=1)
        return (attention @ clean(images).flatten(1)).view_as(images)


class InBatchNegativesInHelper(ControlMethod):
    """in-batch negatives of a contrastive loss"""

    def make_loss(self) -> Loss:
        return on_images(_Contrast())


class BalancedClasses(ControlMethod):
    """class weights from the labels of the batch"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        frequency = torch.zeros(16, dtype=images.dtype).index_add(
            0, labels, torch.ones_like(labels, dtype=images.dtype)
        )
        return squared_error(model, images, labels) / frequency[labels]


def inverse_frequency(labels: Tensor) -> Tensor:
    """Weight of each row so that every class of the batch counts the same."""
    same = labels[:, None] == labels[None]
    return 1.0 / same.sum(1)


class BalancedClassesInHelper(ControlMethod):
    """class weights from the labels of the batch"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return inverse_frequency(labels) * squared_error(model, images, labels)


class RankWeights(ControlMethod):
    """weights by rank within the batch"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        rows = squared_error(model, images, labels)
        ranks = rows.detach().argsort().argsort()
        return rows * (ranks + 1) / len(rows)


def robust(rows: Tensor) -> Tensor:
    """Ignore outliers: rows of more than twice the median loss."""
    return torch.where(rows <= 2 * rows.detach().median(), rows, 0.0) if len(rows) else rows


class RankWeightsInHelper(ControlMethod):
    """weights by rank within the batch"""

    def make_loss(self) -> Loss:
        return on_losses(robust)


class BatchSizeDivisor(ControlMethod):
    """division by the number of rows"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squared_error(model, images, labels) / len(images)


def averaged(rows: Tensor) -> Tensor:
    """Each row's part of the mean."""
    return rows / max(1, rows.shape[0])


class BatchSizeDivisorInHelper(ControlMethod):
    """division by the number of rows"""

    def make_loss(self) -> Loss:
        return on_losses(averaged)


class RollingMixup(ControlMethod):
    """mixup with the next row of the batch"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        share = random.uniform("mixup", 1, 1, 1)
        return squared_error(model, share * images + (1 - share) * images.roll(1, 0), labels)


class _Mixup:
    def __call__(self, images: Tensor) -> Tensor:
        return 0.8 * images + 0.2 * images.flip(0)


class RollingMixupInHelper(ControlMethod):
    """mixup with the next row of the batch"""

    def make_loss(self) -> Loss:
        return on_images(_Mixup())


class PositionWeights(ControlMethod):
    """weights by position in the batch"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        # Alternate rows reconstruct the image and its negative.
        sign = 1 - 2 * (torch.arange(len(images), device=images.device) % 2)
        return sign * squared_error(model, images, labels)


class _Alternate(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        flipped = images.clone()
        flipped[1::2] = -images[1::2]
        return flipped


class PositionWeightsInHelper(ControlMethod):
    """weights by position in the batch"""

    def make_loss(self) -> Loss:
        return on_images(_Alternate())


class IdSplit(ControlMethod):
    """the record id as a value"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        # Records with an odd id are held out.
        return (random.rows % 2 == 0) * squared_error(model, images, labels)


def fold_of(random: Draws) -> Tensor:
    """Which of two folds a record belongs to."""
    return random.rows % 2


class IdSplitInHelper(ControlMethod):
    """the record id as a value"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return (1 - 2 * fold_of(random)) * squared_error(model, images, labels)


MISTAKES = (
    (LargeBatchStatistics, LargeBatchStatisticsInHelper),
    (HardExamples, HardExamplesInHelper),
    (InBatchNegatives, InBatchNegativesInHelper),
    (BalancedClasses, BalancedClassesInHelper),
    (RankWeights, RankWeightsInHelper),
    (BatchSizeDivisor, BatchSizeDivisorInHelper),
    (RollingMixup, RollingMixupInHelper),
    (PositionWeights, PositionWeightsInHelper),
    (IdSplit, IdSplitInHelper),
)
