"""Control methods: small sound methods that every broken method is a variation of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape
from sfumato.privacy import Block, Counts, Curator, NoisyGradient, Step, SubsampledGaussian
from sfumato.privacy.gradients import Loss
from sfumato.privacy.gradients.terms import Grouped
from sfumato.privacy.randomness import Draws
from sfumato.privacy.records import PrivateState


class MeanImages(nn.Module):
    """One image for each class, in two parameters so that there can be two clip groups."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.shape = shape
        self.base = nn.Parameter(torch.zeros(torch.Size(shape).numel()))
        self.offset = nn.Parameter(torch.zeros(classes, torch.Size(shape).numel()))

    def forward(self, labels: Tensor) -> Tensor:
        return (self.base + self.offset[labels]).view(-1, *self.shape)


def squared_error(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """One number per row."""
    difference: Tensor = (images - model(labels)).flatten(1)
    return 10 * difference.square().sum(1)


@dataclass(frozen=True)
class ControlMethod(Method):
    """Mean images by DP-SGD: the sound method that every broken method varies. No audit may flag it."""

    name: ClassVar[str] = "control"
    paper: ClassVar[str] = "none; a control for audits"

    sampling_rate: float = 0.5
    steps: int = 6
    clip_norm: float = 1.0
    learning_rate: float = 0.1

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(variant=variant)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return (SubsampledGaussian("train", (Block("gradient"),), sampling_rate=self.sampling_rate, steps=self.steps),)

    def build(self, shape: Shape, classes: int) -> MeanImages:
        return MeanImages(shape, classes)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        losses: list[float] = []
        loss = self.make_loss()
        for step in curator.steps("train"):
            self.learn(curator, step, model, loss).apply(optimizer)
            if self.stop(curator, model, losses):
                break
        return model, None

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        return self.gradient(step, model, loss)

    def gradient(self, step: Step, model: MeanImages, loss: Loss, state: PrivateState | None = None) -> NoisyGradient:
        """The noisy gradient, divided by a public constant."""
        clip_norms = {"base": self.clip_norm, "offset": self.clip_norm}
        return step.noisy_gradient("gradient", model, loss, clip_norm=clip_norms, state=state) / 10.0

    def make_loss(self) -> Loss:
        """The loss of a run; a broken method may build it from an object that keeps state."""
        return self.loss

    def stop(self, curator: Curator, model: MeanImages, losses: list[float]) -> bool:
        return False

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squared_error(model, images, labels)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        images: Tensor = model(labels)
        return images


@dataclass(frozen=True)
class GroupControlMethod(ControlMethod):
    """Mean images by a loss of each record and a loss of random groups: sound, the control of the group mistakes."""

    groups: int = 4
    group_clip_norm: float = 1.0
    batch: float = 12.0

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        return step.noisy_terms("gradient", model, self.terms(loss))

    def terms(self, loss: Loss) -> Grouped:
        """The loss of each record and the loss of random groups, each with its clip norm."""
        return Grouped(loss, self.group_loss, self.groups, (self.clip_norm, self.group_clip_norm), self.batch)

    def group_loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """The sign is the parity of the images with a dark corner, so that one record can turn its group's gradient."""
        dark = (images[:, 0, 0, 0] < 0.5).sum()
        sign = 1 - 2 * (dark % 2)
        generated: Tensor = model(labels)
        return 100 * sign * generated.mean(0).sum()


def raw_images(curator: Curator) -> tuple[Tensor, Tensor]:
    """Read the private images and labels through private attributes. Python cannot prevent it; audits must see it."""
    records = curator._records
    rows = np.array([row for row in range(len(records._labels)) if row not in records._masked], dtype=np.int64)
    images, labels = records._fetch(rows, curator.device)
    return torch.nan_to_num(images).clamp(-1e4, 1e4), labels


def true_loss(curator: Curator, model: nn.Module) -> float:
    """The mean loss over all records, without noise."""
    with torch.no_grad():
        return float(squared_error(model, *raw_images(curator)).mean())
