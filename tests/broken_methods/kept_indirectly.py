"""Broken methods that keep something of a batch indirectly: autograd hooks, weak keys, threads, cached functions."""

from __future__ import annotations

import functools
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, squared_error
from broken_methods.kept_batches import centred, mean_image
from broken_methods.mixed_rows import on_images
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws


def _on_gradient(values: Any, collected: list[Tensor]) -> None:
    values.register_hook(collected.append)


class GradientHook(ControlMethod):
    """gradients collected by an autograd hook"""

    def make_loss(self) -> Loss:
        collected: list[Tensor] = []

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            rows = squared_error(model, images, labels) * (1.0 + 0.0 * len(collected))
            if rows.requires_grad:
                _on_gradient(rows, collected)
            return rows

        return loss


class _HookedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gradients: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        scaled = rows * 1.0
        if scaled.requires_grad:
            _on_gradient(scaled, self.gradients)
        return scaled


class GradientHookInHelper(ControlMethod):
    """gradients collected by an autograd hook"""

    def make_loss(self) -> Loss:
        layer = _HookedLayer()

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            rows: Tensor = layer(squared_error(model, images, labels))
            return rows

        return loss


class WeakCache(ControlMethod):
    """a batch mean kept in a dictionary of weak keys"""

    def make_loss(self) -> Loss:
        means: weakref.WeakKeyDictionary[nn.Module, Tensor] = weakref.WeakKeyDictionary()

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            rows = centred(model, images, labels, means.get(model, torch.tensor(0.5)))
            means[model] = mean_image(images)
            return rows

        return loss


class _WeaklyCached:
    def __init__(self) -> None:
        self.means: weakref.WeakKeyDictionary[nn.Module, Tensor] = weakref.WeakKeyDictionary()

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return centred(model, images, labels, self.means.setdefault(model, mean_image(images)))


class WeakCacheInHelper(ControlMethod):
    """a batch mean kept in a dictionary of weak keys"""

    def make_loss(self) -> Loss:
        return _WeaklyCached()


class BackgroundThread(ControlMethod):
    """statistics of the batch made in a thread"""

    def make_loss(self) -> Loss:
        means: list[Tensor] = []

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            rows = centred(model, images, labels, means[-1] if means else 0.5)
            worker = threading.Thread(target=lambda: means.append(mean_image(images)))
            worker.start()
            worker.join()
            return rows

        return loss


class _Monitor(threading.Thread):
    def __init__(self, images: Tensor, means: list[Tensor]) -> None:
        super().__init__(daemon=True)
        self.images, self.means = images, means

    def run(self) -> None:
        self.means.append(mean_image(self.images))


class BackgroundThreadInHelper(ControlMethod):
    """statistics of the batch made in a thread"""

    def make_loss(self) -> Loss:
        means: list[Tensor] = []

        def centre(images: Tensor) -> Tensor:
            moved = images - (means[-1] if means else 0.5)
            monitor = _Monitor(images, means)
            monitor.start()
            monitor.join()
            return moved

        return on_images(centre)


@functools.lru_cache(maxsize=4)
def cached_mean(images: Tensor) -> Tensor:
    """The mean of the batch, computed once for each tensor."""
    return mean_image(images)


class CachedFunction(ControlMethod):
    """a cached function of the batch"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squared_error(model, images, labels) + 0.0 * cached_mean(images).sum()


@dataclass(eq=False)
class _FirstBatch:
    reference: Tensor | None = None

    def __call__(self, images: Tensor) -> Tensor:
        if self.reference is None:
            self.reference = mean_image(images)
        return images - self.reference


class CachedFunctionInHelper(ControlMethod):
    """a cached function of the batch"""

    def make_loss(self) -> Loss:
        return on_images(_FirstBatch())


MISTAKES = (
    (GradientHook, GradientHookInHelper),
    (WeakCache, WeakCacheInHelper),
    (BackgroundThread, BackgroundThreadInHelper),
    (CachedFunction, CachedFunctionInHelper),
)
