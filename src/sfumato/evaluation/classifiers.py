"""Train a classifier on one set of labelled images and score it on another: train on synthetic, test on real."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.evaluation.image_sets import last_of_each_class_first
from sfumato.training.optimisation import ema_update

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
class OptimizerSpec:
    """Adam, or SGD where there is a ``momentum``.

    The learning rate is multiplied by ``gamma`` every ``step_size`` epochs.
    """

    learning_rate: float = 1e-3
    momentum: float | None = None
    weight_decay: float = 0.0
    step_size: int | None = None
    gamma: float = 1.0

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        options = {"lr": self.learning_rate, "weight_decay": self.weight_decay, "fused": True}
        if self.momentum is None:
            return torch.optim.Adam(model.parameters(), **options)  # type: ignore[arg-type]
        return torch.optim.SGD(model.parameters(), momentum=self.momentum, **options)  # type: ignore[arg-type]

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch; the first is 0."""
        return self.learning_rate * (self.gamma ** (epoch // self.step_size) if self.step_size else 1.0)

    def __str__(self) -> str:
        name = "Adam" if self.momentum is None else f"SGD, momentum {self.momentum:g}"
        decay = f", × {self.gamma:g} every {self.step_size} epochs" if self.step_size else ""
        weights = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        return f"{name}, learning rate {self.learning_rate:g}{decay}{weights}; cross-entropy"


ADAM = OptimizerSpec()


@dataclass(frozen=True)
class ClassifierSpec:
    """How one classifier is trained, by cross-entropy.

    Attributes:
        name: Its name in results.
        network: Builds the network for (shape, classes). Without one the classifier is scikit-learn's
            ``LogisticRegression`` with its default arguments.
        held_out: The share of the training images that is held out to pick the epoch by accuracy; at 0 the last epoch
            is taken.
        held_out_last: Hold out the last images of each class, in their given order, in place of random ones.
        ties: Which of several equally good epochs is picked.
        centred: Whether pixels enter as −1..1 instead of 0..1.
        ema_decay: Score an exponential moving average of the weights with at most this decay.
    """

    name: str
    network: Callable[[Shape, int], nn.Module] | None
    epochs: int = 0
    batch: int = 256
    held_out: float = 0.0
    held_out_last: bool = False
    ties: str = "first"
    optimizer: OptimizerSpec = ADAM
    centred: bool = False
    ema_decay: float | None = None


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier.

    Attributes:
        predict: From images to class numbers.
        epoch: The epoch that it is from; 1 is the first, 0 means not trained by epochs.
        validated: The same training with the epoch picked on the validation images instead, if there were any.
    """

    name: str
    predict: Callable[[np.ndarray], np.ndarray]
    epoch: int
    validated: TrainedClassifier | None = None


@dataclass(frozen=True)
class Accuracy:
    """Shares of correct answers; a class without test images has ``None``."""

    overall: float
    per_class: tuple[float | None, ...]

    @property
    def worst_class(self) -> float | None:
        present = [value for value in self.per_class if value is not None]
        return min(present) if present else None


class NetworkTraining:
    """One training of a network on images that stay on the device."""

    def __init__(
        self,
        spec: ClassifierSpec,
        pixels: np.ndarray,
        labels: np.ndarray,
        *,
        classes: int,
        seed: int,
        device: str | torch.device = "cpu",
    ) -> None:
        if spec.network is None:
            raise ValueError(f"{spec.name!r} has no network to train")
        self.spec, self.seed, self.device = spec, seed, torch.device(device)
        self.build = partial(spec.network, (pixels.shape[1], pixels.shape[2], pixels.shape[3]), classes)
        self.order = torch.Generator().manual_seed(seed)
        rows = (
            last_of_each_class_first(labels)
            if spec.held_out_last
            else torch.randperm(len(pixels), generator=self.order)
        )
        aside = round(spec.held_out * len(pixels))
        self.held_out, self.rows = rows[:aside].to(self.device), rows[aside:]
        self.images = torch.tensor(pixels, device=self.device)
        self.targets = torch.tensor(labels, dtype=torch.int64, device=self.device)

    def run(
        self, validation: tuple[np.ndarray, np.ndarray] | None = None, progress: Progress = silent
    ) -> list[BestEpoch]:
        """The epoch that is best on the held-out images, and the one that is best on validation images if given."""
        spec, device = self.spec, self.device
        picks = [BestEpoch(spec, self.images[self.held_out], self.targets[self.held_out])]
        if validation is not None:
            given = torch.tensor(validation[0], device=device), torch.tensor(validation[1], device=device)
            picks.append(BestEpoch(spec, *given))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            model = _on_device(self.build(), device)
            scored = model if spec.ema_decay is None else copy.deepcopy(model)
            optimizer = spec.optimizer.build(model)
            updates = 0
            for epoch in range(1, spec.epochs + 1):
                updates = self._epoch(model, scored, optimizer, epoch, updates)
                for pick in picks:
                    pick.consider(epoch, scored)
                progress(spec.name, epoch, spec.epochs)
        for pick in picks:
            if not pick.epoch:
                pick.take(spec.epochs, scored)
        return picks

    def _epoch(
        self, model: nn.Module, scored: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, updates: int
    ) -> int:
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = self.spec.optimizer.rate(epoch - 1)
        turn = self.rows[torch.randperm(len(self.rows), generator=self.order)].to(self.device)
        for part in turn.split(self.spec.batch):
            optimizer.zero_grad(set_to_none=True)
            values = _network_input(self.images[part], self.spec.centred)
            F.cross_entropy(model(values), self.targets[part]).backward()
            optimizer.step()
            updates += 1
            if self.spec.ema_decay is not None:
                ema_update(scored, model, index=updates, decay=self.spec.ema_decay)
        if scored is not model:
            # Only weights are averaged; batch normalisation keeps the statistics of the training.
            for average, current in zip(scored.buffers(), model.buffers(), strict=True):
                average.copy_(current)
        return updates


class BestEpoch:
    """Keeps the weights of the epoch with the best accuracy on some images; without images, of the last epoch."""

    def __init__(self, spec: ClassifierSpec, images: Tensor, targets: Tensor) -> None:
        self.spec, self.images, self.targets = spec, images, targets
        self.accuracy, self.epoch = -1.0, 0
        self.state: dict[str, Tensor] = {}

    def consider(self, epoch: int, model: nn.Module) -> None:
        if not len(self.images):
            return
        found = float((predictions(model, self.images, self.spec.centred) == self.targets).double().mean())
        if found > self.accuracy or (found == self.accuracy and self.spec.ties == "last"):
            self.accuracy = found
            self.take(epoch, model)

    def take(self, epoch: int, model: nn.Module) -> None:
        self.epoch, self.state = epoch, {name: value.clone() for name, value in model.state_dict().items()}


@torch.inference_mode()
def predictions(model: nn.Module, images: Tensor, centred: bool) -> Tensor:
    """The numbers of the predicted classes, always in float32."""
    model.eval()
    return torch.cat([model(_network_input(part, centred)).argmax(dim=1) for part in images.split(2048)])


def _on_device(model: nn.Module, device: torch.device) -> nn.Module:
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _network_input(images: Tensor, centred: bool) -> Tensor:
    values = images.float().div_(255.0)
    return (values * 2.0 - 1.0 if centred else values).contiguous(memory_format=torch.channels_last)


def train_classifier(
    spec: ClassifierSpec,
    pixels: np.ndarray,
    labels: np.ndarray,
    *,
    classes: int,
    seed: int,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
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
        validation: Other labelled images on which a second epoch is picked, as DPImageBench picks its epoch on
            sensitive images; the weights are those of the one training.
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
    training = NetworkTraining(spec, pixels, labels, classes=classes, seed=seed, device=device)

    def classifier(pick: BestEpoch) -> TrainedClassifier:
        with torch.random.fork_rng(devices=[]):  # the first weights are replaced, and no caller's numbers are used
            network = training.build()
        network.load_state_dict(pick.state)
        network = _on_device(network, training.device)

        def predict(images: np.ndarray) -> np.ndarray:
            return predictions(network, torch.tensor(images, device=training.device), spec.centred).cpu().numpy()

        return TrainedClassifier(spec.name, predict, pick.epoch)

    first, *others = map(classifier, training.run(validation, progress))
    return replace(first, validated=others[0]) if others else first


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
