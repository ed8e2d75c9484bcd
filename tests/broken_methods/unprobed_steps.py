"""Broken methods that mix rows at few steps, or in large batches alone, where no timetable of tests looks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, MeanImages, squared_error
from broken_methods.kept_batches import mean_image
from broken_methods.mixed_rows import clean
from sfumato.methods.base import Shape
from sfumato.privacy import Curator, NoisyGradient, Step
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws

Schedule = Callable[[bool], Loss]
"""Whether a step is a late one → its loss."""


class EmbeddedImages(MeanImages):
    """The same model in layers, whose gradients are formed from inputs and output gradients."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        del self.offset
        self.add_module("offset", nn.Embedding.from_pretrained(torch.zeros(classes, len(self.base)), freeze=False))

    def forward(self, labels: Tensor) -> Tensor:
        offset: Tensor = self.get_submodule("offset")(labels)
        return (offset + self.base).view(-1, *self.shape)


def last_digit(value: Tensor | float) -> Tensor | float:
    """0 or 1 by a late digit of the mean, as of a hash: the smallest change of a batch shows in every row."""
    mean = value.nan_to_num().mean() if isinstance(value, Tensor) else value
    return (mean * 98765.4321) // 1 % 2


def shifted(model: nn.Module, images: Tensor, labels: Tensor, value: Tensor | float) -> Tensor:
    """The squared error of images minus the last digit of a value."""
    return squared_error(model, images - last_digit(value), labels)


@dataclass(frozen=True)
class Scheduled(ControlMethod):
    """A control method whose loss may differ at steps 3 and 6: not the first, the last, or a power of four."""

    steps: int = 8

    def build(self, shape: Shape, classes: int) -> MeanImages:
        return EmbeddedImages(shape, classes)

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        schedule = cast(Schedule, loss)
        return self.gradient(step, model, schedule(step.index % 10 in (3, 6)))

    def make_loss(self) -> Loss:
        return cast(Loss, self.schedule())

    def schedule(self) -> Schedule:
        """The losses of one run."""
        return lambda late: self.loss


class LateMean(Scheduled):
    """batch statistics at every tenth step"""

    def schedule(self) -> Schedule:
        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                return shifted(model, images, labels, mean_image(images) if late else 0.5)

            return loss

        return at


class _Alternating(nn.Module):
    """Centres in some steps, as an implementation of virtual batch normalisation does it."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late = late

    def forward(self, images: Tensor) -> Tensor:
        return images - last_digit(mean_image(images)) if self.late else images - 0.5


class LateMeanInHelper(Scheduled):
    """batch statistics at every tenth step"""

    def schedule(self) -> Schedule:
        def at(late: bool) -> Loss:
            centre = _Alternating(late)
            return lambda model, images, labels, random: squared_error(model, centre(images), labels)

        return at


_MANY = 100
"""Rows; the largest probe has 70."""


@dataclass(frozen=True)
class ManyDraws(Scheduled):
    """Four draws of each image, so that a microbatch has more rows than the largest probe."""

    sampling_rate: float = 0.9

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        chosen = cast(Schedule, loss)(True)
        clip_norms = {"base": self.clip_norm, "offset": self.clip_norm}
        return step.noisy_gradient("gradient", model, chosen, clip_norm=clip_norms, draws=4) / 10.0


class ManyExamples(ManyDraws):
    """statistics of the batch from 100 rows on"""

    def schedule(self) -> Schedule:
        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return shifted(model, images, labels, mean_image(images) if len(images) >= _MANY else 0.5)

        return lambda late: loss


def hardest(rows: Tensor) -> Tensor:
    """Weighted by the mean of the ``_MANY`` hardest examples, where there are more."""
    if len(rows) <= _MANY:
        return rows
    return rows * (1 - 2 * last_digit((rows / (1 + rows)).detach().nan_to_num().topk(_MANY).values))


class ManyExamplesInHelper(ManyDraws):
    """statistics of the batch from 100 rows on"""

    def schedule(self) -> Schedule:
        return lambda late: lambda model, images, labels, random: hardest(squared_error(model, images, labels))


_WARM_UP = 150
"""Calls; the checks before the first step make about 70."""


@dataclass(frozen=True)
class CountedCalls(Scheduled):
    """calls counted by an iterator, with batch statistics in some of them"""

    steps: int = 60

    def schedule(self) -> Schedule:
        calls = itertools.count()

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return shifted(model, images, labels, mean_image(images) if next(calls) > _WARM_UP else 0.5)

        return lambda late: loss


class _Versions:
    """Reads the step from the counter that torch keeps of in-place changes."""

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        version = next(model.parameters())._version
        return shifted(model, images, labels, mean_image(images) if version % 10 in (3, 6) else 0.5)


class CountedCallsInHelper(Scheduled):
    """calls counted by an iterator, with batch statistics in some of them"""

    def schedule(self) -> Schedule:
        versions = _Versions()
        return lambda late: versions


class _MeanGradient(torch.autograd.Function):
    """The rows as they are; their gradients minus the mean gradient of the batch."""

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        return rows.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient - gradient.mean(0, keepdim=True)

    @staticmethod
    def vmap(info: Any, in_dims: Any, rows: Tensor) -> tuple[Tensor, int]:
        return _MeanGradient.apply(rows), in_dims[0]


class CustomBackward(Scheduled):
    """a custom autograd.Function whose backward pass mixes rows"""

    def schedule(self) -> Schedule:
        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                difference = (images - model(labels)).flatten(1)
                return 10 * (_MeanGradient.apply(difference) if late else difference).square().sum(1)

            return loss

        return at


class _BatchCentred(torch.autograd.Function):
    """Centres by the mean of the batch, with a rule for vmap that sees all rows."""

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        return rows - last_digit(mean_image(rows))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def vmap(info: Any, in_dims: Any, rows: Tensor) -> tuple[Tensor, int]:
        rows = rows.movedim(in_dims[0], 0)
        return rows - last_digit(clean(rows)), 0


class CustomBackwardInHelper(Scheduled):
    """a custom autograd.Function whose backward pass mixes rows"""

    def schedule(self) -> Schedule:
        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                return squared_error(model, _BatchCentred.apply(images) if late else images, labels)

            return loss

        return at


class ListedParameters(Scheduled):
    """a parameter inside a list, next to the mean of the batch"""

    def schedule(self) -> Schedule:
        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                if not late:
                    return squared_error(model, images, labels)
                parts = [model.get_parameter("base"), mean_image(images).flatten()]
                return shifted(model, images, labels, torch.stack(parts).mean(0))

            return loss

        return at


class ListedParametersInHelper(Scheduled):
    """a parameter inside a list, next to the mean of the batch"""

    def schedule(self) -> Schedule:
        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                if not late:
                    return squared_error(model, images, labels)
                with torch.no_grad():
                    own = torch.cat([model.get_parameter("offset.weight").T.mean(1), model.get_parameter("base")])
                return shifted(model, images - own.mean(), labels, mean_image(images))

            return loss

        return at


class Distances(Scheduled):
    """distances to the other images of the batch"""

    def schedule(self) -> Schedule:
        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                if not late:
                    return squared_error(model, images, labels)
                flat = clean(images).flatten(1)
                return shifted(model, images, labels, torch.cdist(flat, flat))

            return loss

        return at


class _Attention(nn.Module):
    """Each image looks at all images of its batch."""

    def forward(self, images: Tensor) -> Tensor:
        flat = clean(images).flatten(1)
        return (flat @ flat.T).softmax(1) @ flat


class DistancesInHelper(Scheduled):
    """distances to the other images of the batch"""

    def schedule(self) -> Schedule:
        attention = _Attention()

        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                return squared_error(model, images - (attention(images).view_as(images) if late else 0.5), labels)

            return loss

        return at


MISTAKES = (
    (LateMean, LateMeanInHelper),
    (ManyExamples, ManyExamplesInHelper),
    (CountedCalls, CountedCallsInHelper),
    (CustomBackward, CustomBackwardInHelper),
    (ListedParameters, ListedParametersInHelper),
    (Distances, DistancesInHelper),
)
