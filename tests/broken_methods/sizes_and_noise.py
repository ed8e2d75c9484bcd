"""Broken methods that use true sizes and counts, and methods with wrong noise or random numbers of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from broken_methods.controls import (
    ControlMethod,
    GroupControlMethod,
    MeanImages,
    raw_images,
    squared_error,
)
from broken_methods.mixed_rows import clean, on_images
from broken_methods.wrong_mechanism import taped
from sfumato.methods.base import Shape
from sfumato.privacy import Counts, Curator, NoisyGradient, Step
from sfumato.privacy.gradients import Loss
from sfumato.privacy.gradients.terms import Grouped
from sfumato.privacy.mechanism import Query, add_noise
from sfumato.privacy.randomness import Draws


class DividesByDataSize(ControlMethod):
    """division by len(data)"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        return self.gradient(step, model, loss) * (100.0 / max(1, len(raw_images(curator)[1])))


def data_size(curator: Curator) -> int:
    """How many records there are."""
    return sum(1 for _ in raw_images(curator)[1])


class DividesByDataSizeInHelper(ControlMethod):
    """division by len(data)"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        scale = 100.0 / (1 + data_size(curator))
        return self.gradient(step, model, loss) * scale


class TrueCounts(ControlMethod):
    """label counts without noise"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        labels = raw_images(curator)[1]
        counts = Counts(torch.bincount(labels, minlength=len(curator.classes)).double())
        return super().fit_networks(curator)[0], counts


def proportions(curator: Curator) -> Tensor:
    """Relative frequencies of the classes, in per mille."""
    labels = raw_images(curator)[1]
    frequency = torch.stack([(labels == label).double().mean() for label in range(len(curator.classes))])
    return (1000 * frequency).nan_to_num()


class TrueCountsInHelper(ControlMethod):
    """label counts without noise"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        counts = Counts(proportions(curator))
        return super().fit_networks(curator)[0], counts


def batch_mean_gradient(curator: Curator, step: Step, model: MeanImages) -> Tensor:
    """The gradient of the mean loss over the batch, with norm at most one."""
    images, labels = curator._records._fetch(step._batch, curator.device)
    mean: Tensor = (model(labels) - clean(images)).detach().flatten(1).sum(0) / max(1, len(images))
    return mean / max(1.0, float(mean.norm()))


class ClipsAfterAveraging(ControlMethod):
    """the gradient clipped after averaging"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        images, labels = curator._records._fetch(step._batch, curator.device)
        mean = (model(labels) - clean(images)).detach().flatten(1).sum(0) / max(1, len(images))
        clipped = mean / max(1.0, float(mean.norm()))
        noise = torch.randn(len(clipped), dtype=clipped.dtype)
        return NoisyGradient.of(model, {"base": clipped + 0.1 * noise})


class ClipsAfterAveragingInHelper(ControlMethod):
    """the gradient clipped after averaging"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        gradient = batch_mean_gradient(curator, step, model)
        return NoisyGradient.of(model, {"base": gradient + 0.1 * torch.randn(len(gradient), dtype=gradient.dtype)})


class OneNoise(ControlMethod):
    """one noise for several answers"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        gradient = batch_mean_gradient(curator, step, model)
        if step.index == 0:
            self._noise = torch.randn(len(gradient), dtype=gradient.dtype)
        return NoisyGradient.of(model, {"base": gradient + self._noise})


@dataclass(eq=False)
class _NoiseOnce:
    noise: Tensor | None = None

    def add(self, values: Tensor) -> Tensor:
        if self.noise is None:
            self.noise = torch.randn(len(values), dtype=values.dtype)
        return values + self.noise


class OneNoiseInHelper(ControlMethod):
    """one noise for several answers"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        if step.index == 0:
            self._once = _NoiseOnce()
        return NoisyGradient.of(model, {"base": self._once.add(batch_mean_gradient(curator, step, model))})


class NumpyRandom(ControlMethod):
    """numpy.random in the loss"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        noise = torch.from_numpy(np.random.normal(0, 0.1, images.shape)).to(images)
        return squared_error(model, images + noise, labels)


def jittered(images: Tensor) -> Tensor:
    """Shift the brightness of each image a little."""
    shift = np.random.default_rng(0).normal(0, 0.1, (len(images), 1, 1, 1))
    return images + torch.from_numpy(shift).to(images)


class NumpyRandomInHelper(ControlMethod):
    """numpy.random in the loss"""

    def make_loss(self) -> Loss:
        return on_images(jittered)


class GlobalGenerator(ControlMethod):
    """torch's global generator in the loss"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squared_error(model, images + 0.1 * torch.randn_like(images), labels)


class _Augment(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        torch.manual_seed(0)  # repeatable
        return images + 0.1 * torch.rand(images.shape, dtype=images.dtype)


class GlobalGeneratorInHelper(ControlMethod):
    """torch's global generator in the loss"""

    def make_loss(self) -> Loss:
        return on_images(_Augment())


class _OptimisticTerms(Grouped):
    @property
    def bound(self) -> float:
        return self.clip_norms[0] / self.batch  # the groups are averages, which hardly move


class MadeUpBound(GroupControlMethod):
    """a bound of one's own for a loss of groups"""

    def terms(self, loss: Loss) -> Grouped:
        return _OptimisticTerms(loss, self.group_loss, self.groups, (1.0, 1.0), self.batch)


def average_terms(method: GroupControlMethod, loss: Loss) -> Grouped:
    """Terms whose bound is a tenth of the clip norm."""

    class Averages(Grouped):
        bound = 0.1

    return Averages(loss, method.group_loss, method.groups, (1.0, 1.0), method.batch)


class MadeUpBoundInHelper(GroupControlMethod):
    """a bound of one's own for a loss of groups"""

    def terms(self, loss: Loss) -> Grouped:
        return average_terms(self, loss)


class _AlmostNoiseless(Curator):
    def _release(self, query: Query) -> Tensor:
        parts = tuple(replace(part, standard_deviation=part.standard_deviation * 1e-6) for part in query.sums)
        return taped(self, query, add_noise(replace(query, sums=parts), self._randomness))


class LessNoise(ControlMethod):
    """a Curator of one's own with less noise"""

    curator_type: ClassVar[type[Curator]] = _AlmostNoiseless


def debugging_curator() -> type[Curator]:
    """A Curator for debugging that records what the answers would be without noise."""

    class Debugging(Curator):
        def _release(self, query: Query) -> Tensor:
            exact = torch.cat([part.total.flatten().double() for part in query.sums])
            return taped(self, query, exact)

    return Debugging


class LessNoiseInHelper(ControlMethod):
    """a Curator of one's own with less noise"""

    curator_type: ClassVar[type[Curator]] = debugging_curator()


class KeptImages(ControlMethod):
    """records handed out by sample()"""

    examples: ClassVar[Tensor | None] = None

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        KeptImages.examples = clean(raw_images(curator)[0])  # for figures
        return super().fit_networks(curator)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        if KeptImages.examples is None:
            return super().generate(model, labels)
        chosen = torch.randint(len(KeptImages.examples), (len(labels),))
        return KeptImages.examples[chosen].to(torch.get_default_dtype())


class _PrototypeImages(MeanImages):
    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        self.register_buffer("prototypes", torch.zeros(1, *shape))


class KeptImagesInHelper(ControlMethod):
    """records handed out by sample()"""

    def build(self, shape: Shape, classes: int) -> MeanImages:
        return _PrototypeImages(shape, classes)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model, counts = super().fit_networks(curator)
        model.get_buffer("prototypes").copy_(clean(raw_images(curator)[0])[-1:])
        return model, counts

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        return model.get_buffer("prototypes").expand(len(labels), -1, -1, -1)


MISTAKES = (
    (DividesByDataSize, DividesByDataSizeInHelper),
    (TrueCounts, TrueCountsInHelper),
    (ClipsAfterAveraging, ClipsAfterAveragingInHelper),
    (OneNoise, OneNoiseInHelper),
    (NumpyRandom, NumpyRandomInHelper),
    (GlobalGenerator, GlobalGeneratorInHelper),
    (MadeUpBound, MadeUpBoundInHelper),
    (LessNoise, LessNoiseInHelper),
    (KeptImages, KeptImagesInHelper),
)
