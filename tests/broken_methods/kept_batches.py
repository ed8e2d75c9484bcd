"""Broken methods whose loss keeps something of a batch and uses it later: on objects, in closures, in modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, MeanImages, squared_error
from broken_methods.mixed_rows import clean, on_images
from sfumato.methods.base import Shape
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws

_REFERENCE: dict[str, Tensor] = {}
_SEEN: list[Tensor] = []


def mean_image(images: Tensor) -> Tensor:
    """The mean of the batch, or grey if it is empty."""
    return clean(images).detach().mean(0) if len(images) else images.new_full(images.shape[1:], 0.5)


def centred(model: nn.Module, images: Tensor, labels: Tensor, mean: Tensor | float) -> Tensor:
    """The squared error of images minus a reference."""
    return squared_error(model, images - mean, labels)


class KeptOnSelf(ControlMethod):
    """a batch mean kept on self"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        rows = centred(model, images, labels, getattr(self, "_mean", 0.5))
        self._mean = mean_image(images)
        return rows


class _RunningMean:
    """Centres images by the mean of the previous batch."""

    def __init__(self) -> None:
        self.mean: Tensor | float = 0.5

    def __call__(self, images: Tensor) -> Tensor:
        moved = images - self.mean
        self.mean = mean_image(images)
        return moved


class KeptOnSelfInHelper(ControlMethod):
    """a batch mean kept on self"""

    def make_loss(self) -> Loss:
        return on_images(_RunningMean())


class KeptInClosure(ControlMethod):
    """a batch mean kept in a closure"""

    def make_loss(self) -> Loss:
        mean: Tensor | float = 0.5

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            nonlocal mean
            rows = centred(model, images, labels, mean)
            mean = mean_image(images)
            return rows

        return loss


class KeptInClosureInHelper(ControlMethod):
    """a batch mean kept in a closure"""

    def make_loss(self) -> Loss:
        means: list[Tensor] = []

        def centre(images: Tensor) -> Tensor:
            means.append(mean_image(images))
            return images - means[max(0, len(means) - 2)]

        return on_images(centre)


class KeptInGlobal(ControlMethod):
    """a batch mean kept in a module variable"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        rows = centred(model, images, labels, _REFERENCE.get("mean", torch.tensor(0.5)))
        _REFERENCE["mean"] = mean_image(images)
        return rows


def remembered(images: Tensor) -> Tensor:
    """Centre by the mean of what was seen before, as far as it has this shape."""
    before = [mean for mean in _SEEN if mean.shape == images.shape[1:]]
    _SEEN.append(mean_image(images))
    return images - (before[-1] if before else 0.5)


class KeptInGlobalInHelper(ControlMethod):
    """a batch mean kept in a module variable"""

    def make_loss(self) -> Loss:
        _SEEN.clear()
        return on_images(remembered)


class KeptInDefault(ControlMethod):
    """a batch mean kept in a default argument"""

    def loss(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        random: Draws,
        seen: list[Tensor] = [],  # noqa: B006
    ) -> Tensor:
        rows = centred(model, images, labels, seen[-1] if seen and seen[-1].shape == images.shape[1:] else 0.5)
        seen.append(mean_image(images))
        return rows


def with_default(images: Tensor, seen: dict[int, Tensor] = {}) -> Tensor:  # noqa: B006
    """Centre by the first batch of this size of image."""
    return images - seen.setdefault(images.shape[-1], mean_image(images))


class KeptInDefaultInHelper(ControlMethod):
    """a batch mean kept in a default argument"""

    def make_loss(self) -> Loss:
        return on_images(with_default)


class _BufferedImages(MeanImages):
    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        self.register_buffer("mean", torch.full(shape, 0.5))


class KeptInBuffer(ControlMethod):
    """a batch mean kept in a buffer of the model"""

    def build(self, shape: Shape, classes: int) -> MeanImages:
        return _BufferedImages(shape, classes)

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        mean = model.get_buffer("mean")
        rows = centred(model, images, labels, mean)
        with torch.no_grad():
            mean.lerp_(mean_image(images).to(mean), 0.1)
        return rows


class _RunningStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(0.5))

    def forward(self, images: Tensor) -> Tensor:
        mean = self.get_buffer("mean")
        moved = images - mean
        mean.mul_(0.9).add_(0.1 * mean_image(images).mean())
        return moved


class KeptInBufferInHelper(ControlMethod):
    """a batch mean kept in a buffer of the model"""

    def make_loss(self) -> Loss:
        return on_images(_RunningStatistics())


class KeptOnModel(ControlMethod):
    """the last batch kept as an attribute of the model"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        before = model.__dict__.get("last_images")
        model.__dict__["last_images"] = images
        return centred(model, images, labels, 0.5 if before is None else mean_image(before))


class _KeepsInput(nn.Module):
    """Keeps its input for plots, as many networks do with activations."""

    def forward(self, images: Tensor) -> Tensor:
        before = self.__dict__.get("activations")
        self.__dict__["activations"] = images.detach()
        return images - (0.5 if before is None else mean_image(before))


class KeptOnModelInHelper(ControlMethod):
    """the last batch kept as an attribute of the model"""

    def make_loss(self) -> Loss:
        return on_images(_KeepsInput())


MISTAKES = (
    (KeptOnSelf, KeptOnSelfInHelper),
    (KeptInClosure, KeptInClosureInHelper),
    (KeptInGlobal, KeptInGlobalInHelper),
    (KeptInDefault, KeptInDefaultInHelper),
    (KeptInBuffer, KeptInBufferInHelper),
    (KeptOnModel, KeptOnModelInHelper),
)
