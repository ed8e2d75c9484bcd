"""Broken methods in which one record's contribution depends on the other records of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, MeanImages
from sfumato.methods.base import Shape
from sfumato.privacy import Counts, Curator
from sfumato.privacy.randomness import Draws


class NormalisedImages(MeanImages):
    """Mean images followed by batch normalisation."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        self.norm = nn.BatchNorm2d(shape[0], affine=False, track_running_stats=False)

    def forward(self, labels: Tensor) -> Tensor:
        images: Tensor = self.norm(super().forward(labels))
        return images


@dataclass(frozen=True)
class Normalised(ControlMethod):
    """batch normalisation"""

    def build(self, shape: Shape, classes: int) -> MeanImages:
        return NormalisedImages(shape, classes)


@dataclass(frozen=True)
class MixedLoss(ControlMethod):
    """a loss that mixes the batch"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return super().loss(model, images - torch.nan_to_num(images).clamp(0, 1).mean(0), labels, random)


@dataclass(frozen=True)
class StateAcrossRecords(ControlMethod):
    """private state read across records"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        state = curator.private_state("codes", curator.shape)

        def batch_mean(images: Tensor, labels: Tensor, random: Draws, own: Tensor) -> Tensor:
            return torch.nan_to_num(images).clamp(0, 1).mean(0).expand_as(own)

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws, own: Tensor) -> Tensor:
            return self.loss(model, images - 3 * own, labels, random)

        for step in curator.steps("train"):
            step.update(state, batch_mean)
            self.gradient(step, model, loss, state).apply(optimizer)
        return model, None
