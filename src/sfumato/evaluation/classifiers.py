"""Train a classifier on one set of labelled images and score it on another: train on synthetic, test on real."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, int, int]
"""Channels, height, width."""


class HalfDropout(nn.Module):
    """Dropout with probability ½ that takes eight random bits from each byte of one random word.

    On a CPU, torch's own dropout takes two thirds of the time of the small network that it is used in.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Keep each element with probability ½ and double it; the identity in evaluation mode."""
        if not self.training:
            return values
        values = values.contiguous(memory_format=torch.channels_last)
        words = torch.randint(-(2**63), 2**63 - 1, (-(-values.numel() // 8),), device=values.device)
        # A mask in the memory order of the values: multiplying across layouts is slow.
        kept = (words.view(torch.uint8) < 128).as_strided(values.shape, values.stride())
        return values * (kept * 2.0)


def mlp(shape: Shape, classes: int) -> nn.Module:
    """d-100-K with ReLU."""
    channels, height, width = shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 100), nn.ReLU(), nn.Linear(100, classes))


def strided_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two strided convolutions with dropout before the ReLU, then one linear layer."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1),
        HalfDropout(),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        HalfDropout(),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * -(-height // 4) * -(-width // 4), classes),
    )


def pooled_cnn(shape: Shape, classes: int) -> nn.Module:
    """Three convolutions, two poolings, two linear layers: our reading of DPPM's figure 4(c)."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
    )
    return _with_head(body, shape, classes)


def small_pooled_cnn(shape: Shape, classes: int) -> nn.Module:
    """Two padded convolutions, each pooled, and two linear layers."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    return _with_head(body, shape, classes)


def _with_head(body: nn.Module, shape: Shape, classes: int) -> nn.Module:
    with torch.inference_mode():
        width = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body, nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, classes))


Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all); a progress bar on the command line."""


def silent(task: str, done: int, total: int) -> None:
    """The progress that reports nothing."""


@dataclass(frozen=True)
class ClassifierSpec:
    """How one classifier is trained, by cross-entropy.

    Attributes:
        name: Its name in results.
        network: Builds the network for (shape, classes). Without one the classifier is scikit-learn's
            ``LogisticRegression`` with its default arguments.
        held_out: The share of the training images that is held out to pick the epoch by accuracy; at 0 the last epoch
            is taken.
    """

    name: str
    network: Callable[[Shape, int], nn.Module] | None
    epochs: int = 0
    batch: int = 256
    held_out: float = 0.0


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier.

    Attributes:
        predict: From images to class numbers.
        epoch: The epoch that it is from; 1 is the first, 0 means not trained by epochs.
    """

    name: str
    predict: Callable[[np.ndarray], np.ndarray]
    epoch: int


@dataclass(frozen=True)
class Accuracy:
    """Shares of correct answers; a class without test images has ``None``."""

    overall: float
    per_class: tuple[float | None, ...]

    @property
    def worst_class(self) -> float | None:
        present = [value for value in self.per_class if value is not None]
        return min(present) if present else None


@torch.inference_mode()
def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """The numbers of the predicted classes, always in float32."""
    model.eval()
    return torch.cat([model(_network_input(part)).argmax(dim=1) for part in images.split(2048)])


def _network_input(images: Tensor) -> Tensor:
    return images.float().div_(255.0).contiguous(memory_format=torch.channels_last)


def train_classifier(
    spec: ClassifierSpec,
    pixels: np.ndarray,
    labels: np.ndarray,
    *,
    classes: int,
    seed: int,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> TrainedClassifier:
    """Train a classifier.

    Args:
        spec: How it is trained.
        pixels: The training images, uint8 ``[N, C, H, W]``.
        labels: Their classes.
        classes: The number of classes.
        seed: The same seed gives the same classifier.
        device: Where the network runs.
        progress: Called after every epoch.
    """
    _check(pixels, labels, classes)
    if len(np.unique(labels)) < 2:
        # A collapsed generator: the only label is the only prediction, and scikit-learn would refuse to fit.
        constant = int(labels[0])
        return TrainedClassifier(spec.name, lambda images: np.full(len(images), constant), 0)
    if spec.network is None:
        return _logistic_regression(spec.name, pixels, labels, progress)
    model, epoch = _trained_network(spec, spec.network, pixels, labels, classes, seed, torch.device(device), progress)

    def predict(images: np.ndarray) -> np.ndarray:
        return predictions(model, torch.tensor(images, device=device)).cpu().numpy()

    return TrainedClassifier(spec.name, predict, epoch)


def _trained_network(
    spec: ClassifierSpec,
    network: Callable[[Shape, int], nn.Module],
    pixels: np.ndarray,
    labels: np.ndarray,
    classes: int,
    seed: int,
    device: torch.device,
    progress: Progress,
) -> tuple[nn.Module, int]:
    """The network after its last epoch, or after the first of those that are best on the held-out images; the epoch."""
    order = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(pixels), generator=order)
    aside = round(spec.held_out * len(pixels))
    held_out, rows = rows[:aside].to(device), rows[aside:]
    images, targets = torch.tensor(pixels, device=device), torch.tensor(labels, dtype=torch.int64, device=device)
    chosen, best, weights = spec.epochs, -1.0, None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = network((pixels.shape[1], pixels.shape[2], pixels.shape[3]), classes)
        model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        for epoch in range(1, spec.epochs + 1):
            model.train()
            for part in rows[torch.randperm(len(rows), generator=order)].to(device).split(spec.batch):
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(model(_network_input(images[part])), targets[part]).backward()
                optimizer.step()
            if aside:
                found = float((predictions(model, images[held_out]) == targets[held_out]).double().mean())
                if found > best:
                    chosen, best, weights = epoch, found, copy.deepcopy(model.state_dict())
            progress(spec.name, epoch, spec.epochs)
    if weights is not None:
        model.load_state_dict(weights)
    return model, chosen


def score(classifier: TrainedClassifier, pixels: np.ndarray, labels: np.ndarray, *, classes: int) -> Accuracy:
    """Accuracy of a trained classifier, overall and for each class."""
    _check(pixels, labels, classes)
    right = classifier.predict(pixels) == labels
    found = (right[labels == label] for label in range(classes))
    return Accuracy(float(right.mean()), tuple(float(part.mean()) if len(part) else None for part in found))


def _check(pixels: np.ndarray, labels: np.ndarray, classes: int) -> None:
    if pixels.ndim != 4 or pixels.dtype != np.uint8:
        raise ValueError(f"images must be uint8 [images, channels, height, width], not {pixels.dtype} {pixels.ndim}-D")
    if not len(pixels) or len(pixels) != len(labels):
        raise ValueError("there must be at least one image, and one label for each; check both arrays")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must be numbers 0 to {classes - 1}, one for each class")


def _flat(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 255.0


def _logistic_regression(name: str, pixels: np.ndarray, labels: np.ndarray, progress: Progress) -> TrainedClassifier:
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("logistic regression needs scikit-learn: pip install 'sfumato[eval]'") from error
    progress(name, 0, 1)
    with warnings.catch_warnings():
        # The default stops at 100 iterations; that is the protocol, and no reason for a warning.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression().fit(_flat(pixels), labels)
    progress(name, 1, 1)
    return TrainedClassifier(name, lambda images: model.predict(_flat(images)), 0)


LOGISTIC_REGRESSION = ClassifierSpec("LR", None)
MLP = ClassifierSpec("MLP", mlp, epochs=20)
CNN = ClassifierSpec("CNN", strided_cnn, epochs=10)
