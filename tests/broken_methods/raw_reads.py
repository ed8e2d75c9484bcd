"""Broken methods that read the private records past the Curator, as somebody would who expects no harm from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, MeanImages, raw_images, true_loss
from sfumato.privacy import Counts, Curator, NoisyGradient, PrivateRecords, Step
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws
from sfumato.release.release import Release


@dataclass(frozen=True)
class RealBatchSize(ControlMethod):
    """the real batch size as divisor"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        gradient = self.gradient(step, model, loss)
        return gradient * 10.0 / max(1, len(step._batch))


@dataclass(frozen=True)
class Centred(ControlMethod):
    """centring by the private mean"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        mean = raw_images(curator)[0].mean(0)

        def changed(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return self.loss(model, images - mean, labels, random)

        return self.gradient(step, model, changed)


@dataclass(frozen=True)
class EarlyStopping(ControlMethod):
    """early stopping on a private loss"""

    def stop(self, curator: Curator, model: MeanImages, losses: list[float]) -> bool:
        losses.append(true_loss(curator, model))
        return len(losses) > 1 and losses[-1] > losses[-2]


@dataclass(frozen=True)
class Unlisted(ControlMethod):
    """an unlisted query"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        counts = curator.noisy_histogram("class counts")
        return super().fit_networks(curator)[0], counts


@dataclass(frozen=True)
class SizeDependentRate(ControlMethod):
    """an N-dependent rate"""

    def fit(self, private: PrivateRecords, *arguments: Any, **options: Any) -> Release:
        size = len(private._labels) - len(private._masked)
        fitted = replace(self, sampling_rate=min(1.0, 20 / max(1, size)))
        return ControlMethod.fit(fitted, private, *arguments, **options)


@dataclass(frozen=True)
class ShardEncoder(ControlMethod):
    """an encoder fitted on the shard"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        images = raw_images(curator)[0].clamp(0, 1).flatten(1)
        encoder = torch.linalg.svd(images - 0.5, full_matrices=False)[2][0]

        def changed(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            # Each record is reconstructed from its own code, but the encoder was fitted on all records.
            code = 10 * torch.sign(torch.nan_to_num(images).flatten(1) @ encoder)[:, None] * encoder
            return self.loss(model, code.view_as(images), labels, random)

        return self.gradient(step, model, changed)


@dataclass(frozen=True)
class UnnoisedAggregate(ControlMethod):
    """an un-noised aggregate"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        aggregate = (raw_images(curator)[0].clamp(0, 1).flatten(1) - 0.5).sum()
        signal = torch.tanh(aggregate)  # the derivative of the loss by the aggregate is a factor of every gradient

        def changed(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return signal * self.loss(model, images, labels, random)

        return self.gradient(step, model, changed)


@dataclass(frozen=True)
class ResponseOnProjections(ControlMethod):
    """randomised response on projections"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        images, labels = raw_images(curator)
        directions = torch.randn(8, images[0].numel())
        # The directions do not depend on the data, so randomising them protects no record.
        chosen = directions[torch.where(torch.rand(()) < 0.5, 0, torch.randint(8, ()))]
        with torch.no_grad():
            apart = (model(labels) - images).flatten(1).clamp(-1, 1)
        pull = (apart @ chosen)[:, None] * chosen
        return NoisyGradient.of(model, {"base": pull.mean(0)})


@dataclass(frozen=True)
class UnnoisedMomentum(ControlMethod):
    """un-noised momentum"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        gradient = super().learn(curator, step, model, loss)
        images, labels = raw_images(curator)
        momentum = (model(labels) - images).flatten(1).clamp(-1, 1).mean(0).detach()
        return NoisyGradient.of(model, {**gradient.parts, "base": gradient.parts["base"] + 0.9 * momentum})
