"""Broken methods that turn private values into Python numbers, branches or shapes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, MeanImages, squared_error
from broken_methods.mixed_rows import clean, on_images, on_losses
from sfumato.privacy import Block, Counts, Curator, NoisyGradient, Step, SubsampledGaussian
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws


class LossHistory(ControlMethod):
    """float() of a loss kept for a schedule"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        rows = squared_error(model, images, labels)
        history = self.__dict__.setdefault("_history", [])
        history.append(float(rows.detach().nan_to_num().mean()))
        return rows * (0.5 if history[-1] > history[0] else 1.0)


class _Meter:
    """Average of the last losses, as in many training scripts."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, rows: Tensor) -> Tensor:
        scale = 0.5 if self.last > 100.0 else 1.0
        self.last = rows.detach().nan_to_num().sum().item()
        return rows * scale


class LossHistoryInHelper(ControlMethod):
    """float() of a loss kept for a schedule"""

    def make_loss(self) -> Loss:
        return on_losses(_Meter())


class NumpyHistory(ControlMethod):
    """numpy arrays made from a batch"""

    def make_loss(self) -> Loss:
        means: list[np.ndarray] = []

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            means.append(clean(images).numpy().mean(axis=(1, 2, 3)).sum(keepdims=True))
            return squared_error(model, images - float(means[max(0, len(means) - 2)][0]) / 100, labels)

        return loss


class _Listed:
    def __init__(self) -> None:
        self.labels: list[int] = []

    def __call__(self, labels: Tensor) -> int:
        self.labels.extend(labels.tolist())
        return self.labels.count(0)


class NumpyHistoryInHelper(ControlMethod):
    """numpy arrays made from a batch"""

    def make_loss(self) -> Loss:
        counted = _Listed()

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return squared_error(model, images, labels) / (1 + counted(labels))

        return loss


@dataclass(frozen=True)
class LongTraining(ControlMethod):
    """A control method with more than 50 steps."""

    steps: int = 70


class LateSwitch(LongTraining):
    """batch statistics after step 50"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        def late(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            # The mean is stable once the first epochs are over.
            centre = clean(images).mean(0) if step.index >= 50 else 0.5
            return squared_error(model, images - centre, labels)

        return self.gradient(step, model, late)


class _WarmUp:
    """Counts its calls and standardises when the warm-up is over."""

    def __init__(self, calls: int) -> None:
        self.calls, self.warm = 0, calls

    def __call__(self, images: Tensor) -> Tensor:
        self.calls += 1
        return images - clean(images).mean(0) if self.calls > self.warm else images - 0.5


class LateSwitchInHelper(LongTraining):
    """batch statistics after step 50"""

    def make_loss(self) -> Loss:
        return on_images(_WarmUp(150))


class BatchSizes(ControlMethod):
    """batch sizes kept for the learning rate"""

    def fit_sizes(self) -> list[int]:
        sizes: list[int] = self.__dict__.setdefault("_sizes", [])
        return sizes

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        self.fit_sizes().append(len(images))
        return squared_error(model, images, labels)

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        return self.gradient(step, model, loss) * (10.0 / max(1, max(self.fit_sizes(), default=1)))


class _Sizes:
    def __init__(self) -> None:
        self.largest = 1

    def __call__(self, images: Tensor) -> Tensor:
        self.largest = max(self.largest, images.shape[0])
        return images


class BatchSizesInHelper(ControlMethod):
    """batch sizes kept for the learning rate"""

    def make_loss(self) -> Loss:
        self._sizes = _Sizes()
        return on_images(self._sizes)

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        return self.gradient(step, model, loss) / self._sizes.largest


class PrivateBranch(ControlMethod):
    """an if on private values"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        if (clean(images) > 0.999).any():  # over-exposed: use a robust loss
            return squared_error(model, images, labels).clamp(max=10.0)
        return squared_error(model, images, labels)


def safe(rows: Tensor) -> Tensor:
    """Skip a batch that overflows."""
    return torch.zeros_like(rows) if bool(torch.isinf(rows).any()) else rows


class PrivateBranchInHelper(ControlMethod):
    """an if on private values"""

    def make_loss(self) -> Loss:
        return on_losses(safe)


@dataclass(frozen=True)
class _ClassCounts(ControlMethod):
    """Class counts by a sum of one-hot vectors, then mean images."""

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return (SubsampledGaussian("counts", (Block("sum", 5.0),)), *super().queries())

    def one_hot(self, labels: Tensor) -> Tensor:
        """One vector for each row."""
        raise NotImplementedError

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        def features(images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return self.one_hot(labels)

        counts = Counts(curator.noisy_sum("counts", features, clip_norm=1.0))
        return super().fit_networks(curator)[0], counts


class InferredWidth(_ClassCounts):
    """a width inferred from the labels"""

    def one_hot(self, labels: Tensor) -> Tensor:
        return nn.functional.one_hot(labels).double()


def indicators(labels: Tensor) -> Tensor:
    """One column for each class that occurs."""
    found: Tensor = labels[:, None] == torch.unique(labels)[None]
    return found.double()


class InferredWidthInHelper(_ClassCounts):
    """a width inferred from the labels"""

    def one_hot(self, labels: Tensor) -> Tensor:
        return indicators(labels)


class FilteredRows(ControlMethod):
    """rows selected by a mask"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        bright = clean(images).flatten(1).mean(1) > 0.05
        rows = squared_error(model, images[bright], labels[bright])
        return torch.zeros(len(images), dtype=rows.dtype).masked_scatter(bright, rows / max(1, len(rows)))


def kept(rows: Tensor) -> Tensor:
    """Spread the loss of finite rows over them."""
    finite = torch.isfinite(rows).nonzero()[:, 0]
    return torch.zeros_like(rows).index_put((finite,), rows[finite] / max(1, len(finite)))


class FilteredRowsInHelper(ControlMethod):
    """rows selected by a mask"""

    def make_loss(self) -> Loss:
        return on_losses(kept)


class DynamicScale(ControlMethod):
    """a loss scale that adapts to overflow"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        scale = self.__dict__.setdefault("_scale", [1024.0])
        rows = squared_error(model, images, labels)
        if not torch.isfinite(rows.sum()):
            scale[0] /= 2
        factor: float = scale[0] / 1024.0
        return rows * factor


class _Scaler:
    def __init__(self) -> None:
        self.scale = 1024.0

    def __call__(self, rows: Tensor) -> Tensor:
        scaled = rows * self.scale
        self.scale *= 0.5 if torch.isinf(scaled).sum().item() else 1.0
        return scaled / 1024.0


class DynamicScaleInHelper(ControlMethod):
    """a loss scale that adapts to overflow"""

    def make_loss(self) -> Loss:
        return on_losses(_Scaler())


MISTAKES = (
    (LossHistory, LossHistoryInHelper),
    (NumpyHistory, NumpyHistoryInHelper),
    (LateSwitch, LateSwitchInHelper),
    (BatchSizes, BatchSizesInHelper),
    (PrivateBranch, PrivateBranchInHelper),
    (InferredWidth, InferredWidthInHelper),
    (FilteredRows, FilteredRowsInHelper),
    (DynamicScale, DynamicScaleInHelper),
)
