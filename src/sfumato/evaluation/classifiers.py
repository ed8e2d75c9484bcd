"""Classifiers that learn from one set of labelled images and are tested on another: train on synthetic, test on real.

Learning and scoring are two functions, and learning is given no test set. Where a recipe picks its best epoch, it can
only do so on a part it holds out of the images it learns from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all); a progress bar on the command line."""

Shape = tuple[int, int, int]
"""Channels, height, width."""


def silent(task: str, done: int, total: int) -> None:
    """The progress that reports nothing."""


@dataclass(frozen=True)
class Recipe:
    """How one classifier is trained. Pixels enter as 0..1, the loss is cross-entropy, the optimiser is Adam as torch
    sets it up (learning rate 1e-3).

    ``held_out`` is the share of the training images that is kept aside to choose the best epoch by accuracy; at 0 the
    last epoch is taken. ``network`` builds the network for (shape, classes); without one the classifier is
    scikit-learn's ``LogisticRegression`` with its default arguments.
    """

    name: str
    network: Callable[[Shape, int], nn.Module] | None
    epochs: int = 0
    batch: int = 256
    held_out: float = 0.0


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier: what it predicts, and the epoch (1 is the first, 0: not trained by epochs) it is from."""

    name: str
    predict: Callable[[np.ndarray], np.ndarray]
    epoch: int


@dataclass(frozen=True)
class Accuracy:
    """Shares of correct answers. A class without test images has ``None``, and so has the worst class of no classes."""

    overall: float
    per_class: tuple[float | None, ...]

    @property
    def worst_class(self) -> float | None:
        present = [value for value in self.per_class if value is not None]
        return min(present) if present else None


def learn(
    recipe: Recipe,
    pixels: np.ndarray,
    labels: np.ndarray,
    *,
    classes: int,
    seed: int,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> TrainedClassifier:
    """Train a classifier on ``pixels`` (uint8 ``[N, C, H, W]``) and ``labels``; the same seed gives the same one."""
    _check(pixels, labels, classes)
    if len(np.unique(labels)) < 2:
        # A collapsed generator: the only lesson is the one label there is, and scikit-learn would refuse.
        constant = int(labels[0])
        return TrainedClassifier(recipe.name, lambda images: np.full(len(images), constant), 0)
    if recipe.network is None:
        return _logistic_regression(recipe.name, pixels, labels, progress)
    return _train(recipe, pixels, labels, classes, seed, torch.device(device), progress)


def score(learned: TrainedClassifier, pixels: np.ndarray, labels: np.ndarray, *, classes: int) -> Accuracy:
    """Accuracy of a trained classifier, overall and for each class."""
    _check(pixels, labels, classes)
    right = learned.predict(pixels) == labels
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
    import warnings

    progress(name, 0, 1)
    with warnings.catch_warnings():
        # The default stops at 100 iterations; that is the protocol, and no reason for a warning.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = LogisticRegression().fit(_flat(pixels), labels)
    progress(name, 1, 1)
    return TrainedClassifier(name, lambda images: model.predict(_flat(images)), 0)


def _train(
    recipe: Recipe,
    pixels: np.ndarray,
    labels: np.ndarray,
    classes: int,
    seed: int,
    device: torch.device,
    progress: Progress,
) -> TrainedClassifier:
    if recipe.network is None:
        raise ValueError(f"recipe {recipe.name!r} has no network to train")
    order = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(pixels), generator=order)
    kept_aside = round(recipe.held_out * len(pixels))
    held_out, rows = shuffled[:kept_aside].to(device), shuffled[kept_aside:]
    images = torch.tensor(pixels, device=device)
    targets = torch.tensor(labels, dtype=torch.int64, device=device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        shape: Shape = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        model = recipe.network(shape, classes).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        chosen, best, state = recipe.epochs, -1.0, None
        for epoch in range(1, recipe.epochs + 1):
            model.train()
            turn = rows[torch.randperm(len(rows), generator=order)].to(device)
            for part in turn.split(recipe.batch):
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(model(_unit(images[part])), targets[part]).backward()
                optimizer.step()
            if kept_aside:
                found = float((_answers(model, images[held_out]) == targets[held_out]).double().mean())
                if found > best:
                    chosen, best = epoch, found
                    state = {name: value.clone() for name, value in model.state_dict().items()}
            progress(recipe.name, epoch, recipe.epochs)
    if state is not None:
        model.load_state_dict(state)

    def predict(given: np.ndarray) -> np.ndarray:
        return _answers(model, torch.tensor(given, device=device)).cpu().numpy()

    return TrainedClassifier(recipe.name, predict, chosen)


def _unit(images: Tensor) -> Tensor:
    return images.float().div_(255.0).contiguous(memory_format=torch.channels_last)


@torch.inference_mode()
def _answers(model: nn.Module, images: Tensor) -> Tensor:
    model.eval()
    return torch.cat([model(_unit(part)).argmax(dim=1) for part in images.split(2048)])


class HalfDropout(nn.Module):
    """Dropout of every second element on average, eight coins from one random word: on a CPU torch's own dropout takes
    two thirds of the time of the small network it is used in."""

    def forward(self, values: Tensor) -> Tensor:
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


LOGISTIC_REGRESSION = Recipe("LR", None)
MLP = Recipe("MLP", mlp, epochs=20)
CNN = Recipe("CNN", strided_cnn, epochs=10)
