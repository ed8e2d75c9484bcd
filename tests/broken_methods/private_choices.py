"""Broken methods that choose by private values: when to stop, which model, which learning rate, which clip norm."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, MeanImages, raw_images, squared_error, true_loss
from sfumato.privacy import Counts, Curator, NoisyGradient, Step
from sfumato.privacy.gradients import Loss


class StopsEarly(ControlMethod):
    """early stopping by the true loss"""

    def stop(self, curator: Curator, model: MeanImages, losses: list[float]) -> bool:
        losses.append(true_loss(curator, model))
        return len(losses) > 1 and losses[-1] > losses[-2]


@dataclass
class _Patience:
    """Stops when the loss has not improved."""

    best: float = float("inf")

    def over(self, loss: float) -> bool:
        improved = loss < self.best
        self.best = min(self.best, loss)
        return not improved


class StopsEarlyInHelper(ControlMethod):
    """early stopping by the true loss"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        self._patience = _Patience()
        return super().fit_networks(curator)

    def stop(self, curator: Curator, model: MeanImages, losses: list[float]) -> bool:
        return self._patience.over(true_loss(curator, model))


class SelectsModel(ControlMethod):
    """selection between models by the true loss"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        models = [self.build(curator.shape, len(curator.classes)) for _ in range(2)]
        for step in curator.steps("train"):
            gradient = self.gradient(step, models[step.index % 2], self.loss)
            gradient.apply(torch.optim.SGD(models[step.index % 2].parameters(), lr=self.learning_rate))
        return min(models, key=lambda model: true_loss(curator, model)), None


def best_of(models: list[MeanImages], images: Tensor, labels: Tensor) -> MeanImages:
    """The model with the smallest loss."""
    losses = torch.stack([squared_error(model, images, labels).detach().mean() for model in models])
    return models[int(losses.argmin())]


class SelectsModelInHelper(ControlMethod):
    """selection between models by the true loss"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model, counts = super().fit_networks(curator)
        assert isinstance(model, MeanImages)
        other = self.build(curator.shape, len(curator.classes))
        return best_of([model, other], *raw_images(curator)), counts


class PrivateSchedule(ControlMethod):
    """a schedule from true losses"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        return self.gradient(step, model, loss) * min(1.0, 50.0 / (1.0 + true_loss(curator, model)))


def plateau(curator: Curator, model: nn.Module, losses: list[float]) -> float:
    """Halve the learning rate when the loss stops falling."""
    losses.append(true_loss(curator, model))
    return 0.5 ** sum(later >= earlier for earlier, later in itertools.pairwise(losses))


class PrivateScheduleInHelper(ControlMethod):
    """a schedule from true losses"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        losses = self.__dict__.setdefault("_losses", {}).setdefault(id(curator), [])
        return self.gradient(step, model, loss) * plateau(curator, model, losses)


class BestCheckpoint(ControlMethod):
    """the best checkpoint by the true loss"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        best, lowest = copy.deepcopy(model), float("inf")
        for step in curator.steps("train"):
            self.gradient(step, model, self.loss).apply(optimizer)
            if true_loss(curator, model) < lowest:
                best, lowest = copy.deepcopy(model), true_loss(curator, model)
        return best, None


@dataclass
class _Keeper:
    model: nn.Module
    loss: float = float("inf")

    def offer(self, model: nn.Module, loss: float) -> None:
        if loss < self.loss:
            self.model, self.loss = copy.deepcopy(model), loss


class BestCheckpointInHelper(ControlMethod):
    """the best checkpoint by the true loss"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        keeper = _Keeper(model)
        for step in curator.steps("train"):
            self.gradient(step, model, self.loss).apply(optimizer)
            keeper.offer(model, true_loss(curator, model))
        return keeper.model, None


class PrivateClipNorm(ControlMethod):
    """a clip norm from true gradient norms"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        images, labels = raw_images(curator)
        norms = (images - model(labels)).detach().flatten(1).norm(dim=1)
        median = float(norms.median()) if len(norms) else 1.0
        chosen = type(self)(clip_norm=0.5 + median / 100)
        return chosen.gradient(step, model, loss)


def typical_norm(curator: Curator, model: MeanImages) -> float:
    """The mean norm of all gradients."""
    images, labels = raw_images(curator)
    return 0.1 + float((images - model(labels)).detach().flatten(1).norm(dim=1).clamp(max=10).mean())


class PrivateClipNormInHelper(ControlMethod):
    """a clip norm from true gradient norms"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        chosen = type(self)(clip_norm=typical_norm(curator, model))
        return chosen.gradient(step, model, loss)


class EpochsOfData(ControlMethod):
    """a number of steps from the size of the data"""

    def stop(self, curator: Curator, model: MeanImages, losses: list[float]) -> bool:
        losses.append(0.0)
        batches = len(raw_images(curator)[0]) / 13
        return len(losses) >= batches


def epochs(curator: Curator) -> Iterator[Step]:
    """As many steps as two passes over the data have."""
    steps = 2 * len(raw_images(curator)[0]) // 24
    for step in curator.steps("train"):
        if step.index >= steps:
            return
        yield step


class EpochsOfDataInHelper(ControlMethod):
    """a number of steps from the size of the data"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        for step in epochs(curator):
            self.gradient(step, model, self.loss).apply(optimizer)
        return model, None


class SkipsBadBatches(ControlMethod):
    """steps skipped when the batch has bad values"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        for step in curator.steps("train"):
            rows = curator._records._fetch(step._batch, curator.device)[0]
            if bool(torch.isfinite(rows).all()):
                self.gradient(step, model, self.loss).apply(optimizer)
        return model, None


def usable(curator: Curator, step: Step) -> bool:
    """Whether the batch has enough images to learn from."""
    return len(step._batch) >= 30


class SkipsBadBatchesInHelper(ControlMethod):
    """steps skipped when the batch has bad values"""

    def learn(self, curator: Curator, step: Step, model: MeanImages, loss: Loss) -> NoisyGradient:
        return self.gradient(step, model, loss) * float(usable(curator, step))


MISTAKES = (
    (StopsEarly, StopsEarlyInHelper),
    (SelectsModel, SelectsModelInHelper),
    (PrivateSchedule, PrivateScheduleInHelper),
    (BestCheckpoint, BestCheckpointInHelper),
    (PrivateClipNorm, PrivateClipNormInHelper),
    (EpochsOfData, EpochsOfDataInHelper),
    (SkipsBadBatches, SkipsBadBatchesInHelper),
)
