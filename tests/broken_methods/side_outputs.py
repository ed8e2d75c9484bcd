"""Broken methods whose loss writes private values somewhere: files, terminal, logs, environment, exceptions."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, squared_error
from broken_methods.mixed_rows import clean, on_images
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws

_LOG = logging.getLogger(__name__)


class PrintedBatch(ControlMethod):
    """a print in the loss"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        print("batch of", tuple(images.shape))
        return squared_error(model, images, labels)


def shown(images: Tensor) -> Tensor:
    """Show progress on the error stream."""
    sys.stderr.write(f"{len(images)} images\n")
    return images


class PrintedBatchInHelper(ControlMethod):
    """a print in the loss"""

    def make_loss(self) -> Loss:
        return on_images(shown)


class SavedBatch(ControlMethod):
    """a file written by the loss"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        torch.save(images.detach(), Path(tempfile.gettempdir()) / "last-batch.pt")
        return squared_error(model, images, labels)


class _SizeLog:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, images: Tensor) -> Tensor:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{len(images)}\n")
        return images


class SavedBatchInHelper(ControlMethod):
    """a file written by the loss"""

    def make_loss(self) -> Loss:
        return on_images(_SizeLog(Path(tempfile.gettempdir()) / "batch-sizes.txt"))


class TemporaryFile(ControlMethod):
    """a temporary file as a buffer"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(len(images)))
        return squared_error(model, images, labels)


def buffered(images: Tensor) -> Tensor:
    """Spill the batch to disk."""
    handle, name = tempfile.mkstemp()
    os.write(handle, bytes(len(images)))
    os.close(handle)
    os.remove(name)
    return images


class TemporaryFileInHelper(ControlMethod):
    """a temporary file as a buffer"""

    def make_loss(self) -> Loss:
        return on_images(buffered)


class LoggedValues(ControlMethod):
    """a log line with private values"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        rows = squared_error(model, images, labels)
        _LOG.warning("loss %s", rows.detach().mean())
        return rows


def logged(images: Tensor) -> Tensor:
    """Log the size of the batch."""
    _LOG.error("%d rows", len(images))
    return images


class LoggedValuesInHelper(ControlMethod):
    """a log line with private values"""

    def make_loss(self) -> Loss:
        return on_images(logged)


class WarnedValues(ControlMethod):
    """a warning with private values"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        warnings.warn(f"batch of {len(images)} images", stacklevel=2)
        return squared_error(model, images, labels)


def checked(images: Tensor) -> Tensor:
    """Warn of dark batches."""
    if clean(images).mean() < 0.9:
        warnings.warn("a dark batch", RuntimeWarning, stacklevel=2)
    return images


class WarnedValuesInHelper(ControlMethod):
    """a warning with private values"""

    def make_loss(self) -> Loss:
        return on_images(checked)


class RaisedValues(ControlMethod):
    """an exception with private values"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        if len(images) > 20:
            raise ValueError(f"too many images at once: {len(images)}, the first label is {labels[0]}")
        return squared_error(model, images, labels)


def validated(images: Tensor) -> Tensor:
    """Refuse images that are not finite."""
    if not torch.isfinite(images).all():
        raise ValueError(f"image {(~torch.isfinite(images)).nonzero()[0, 0]} is not finite")
    return images


class RaisedValuesInHelper(ControlMethod):
    """an exception with private values"""

    def make_loss(self) -> Loss:
        return on_images(validated)


class EnvironmentVariable(ControlMethod):
    """an environment variable set by the loss"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        os.environ["SFUMATO_LAST_BATCH"] = str(len(images))
        return squared_error(model, images, labels)


def announced(images: Tensor) -> Tensor:
    """Tell child processes how many rows there are."""
    os.putenv("SFUMATO_ROWS", str(images.shape[0]))
    return images


class EnvironmentVariableInHelper(ControlMethod):
    """an environment variable set by the loss"""

    def make_loss(self) -> Loss:
        return on_images(announced)


MISTAKES = (
    (PrintedBatch, PrintedBatchInHelper),
    (SavedBatch, SavedBatchInHelper),
    (TemporaryFile, TemporaryFileInHelper),
    (LoggedValues, LoggedValuesInHelper),
    (WarnedValues, WarnedValuesInHelper),
    (RaisedValues, RaisedValuesInHelper),
    (EnvironmentVariable, EnvironmentVariableInHelper),
)
