"""Train a classifier on one set of labelled images and score it on another: train on synthetic, test on real.

Training and scoring are two functions, and training never sees the test set. A specification that picks its best epoch
does so on images that it holds out of its training images.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.evaluation.classifier_networks import Shape, mlp, strided_cnn
from sfumato.evaluation.image_sets import last_of_each_class_first
from sfumato.training.ema import ema_update

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
        """The optimiser of this model's parameters."""
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
        """The lowest accuracy of a class."""
        present = [value for value in self.per_class if value is not None]
        return min(present) if present else None


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
    """Train a classifier on ``pixels`` (uint8 ``[N, C, H, W]``) and ``labels``; the same seed gives the same one.

    ``validation`` are other labelled images on which a second epoch is picked, as DPImageBench picks its epoch on
    sensitive images; the weights are those of the one training.
    """
    _check(pixels, labels, classes)
    if len(np.unique(labels)) < 2:
        # A collapsed generator: the only label is the only prediction, and scikit-learn would refuse to fit.
        constant = int(labels[0])
        return TrainedClassifier(spec.name, lambda images: np.full(len(images), constant), 0)
    if spec.network is None:
        return _logistic_regression(spec.name, pixels, labels, progress)
    training = _Training(spec, pixels, labels, classes, seed, torch.device(device))
    return training.run(validation, progress)


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


class _Training:
    """One training of a network on images that stay on the device."""

    def __init__(
        self,
        spec: ClassifierSpec,
        pixels: np.ndarray,
        labels: np.ndarray,
        classes: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.spec, self.classes, self.seed, self.device = spec, classes, seed, device
        self.shape: Shape = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        self.order = torch.Generator().manual_seed(seed)
        rows = (
            last_of_each_class_first(labels)
            if spec.held_out_last
            else torch.randperm(len(pixels), generator=self.order)
        )
        aside = round(spec.held_out * len(pixels))
        self.held_out, self.rows = rows[:aside].to(device), rows[aside:]
        self.images = torch.tensor(pixels, device=device)
        self.targets = torch.tensor(labels, dtype=torch.int64, device=device)

    def run(self, validation: tuple[np.ndarray, np.ndarray] | None, progress: Progress) -> TrainedClassifier:
        spec, device = self.spec, self.device
        if spec.network is None:
            raise ValueError(f"{spec.name!r} has no network to train")
        picks = [_BestEpoch(spec, self.images[self.held_out], self.targets[self.held_out])]
        if validation is not None:
            given = torch.tensor(validation[0], device=device), torch.tensor(validation[1], device=device)
            picks.append(_BestEpoch(spec, *given))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            model = spec.network(self.shape, self.classes).to(device)
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            scored = model if spec.ema_decay is None else copy.deepcopy(model)
            optimizer = spec.optimizer.build(model)
            updates = 0
            for epoch in range(1, spec.epochs + 1):
                updates = self._epoch(model, scored, optimizer, epoch, updates)
                for pick in picks:
                    pick.consider(epoch, scored)
                progress(spec.name, epoch, spec.epochs)
        validated = picks[1].classifier(scored, spec.epochs) if len(picks) > 1 else None
        return picks[0].classifier(scored, spec.epochs, validated=validated)

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


class _BestEpoch:
    """Keeps the weights of the epoch with the best accuracy on some images; without images, of the last epoch."""

    def __init__(self, spec: ClassifierSpec, images: Tensor, targets: Tensor) -> None:
        self.spec, self.images, self.targets = spec, images, targets
        self.epoch, self.accuracy = 0, -1.0
        self.state: dict[str, Tensor] | None = None

    def consider(self, epoch: int, model: nn.Module) -> None:
        if not len(self.images):
            return
        found = float((_predictions(model, self.images, self.spec.centred) == self.targets).double().mean())
        if found > self.accuracy or (found == self.accuracy and self.spec.ties == "last"):
            self.epoch, self.accuracy = epoch, found
            self.state = {name: value.clone() for name, value in model.state_dict().items()}

    def classifier(
        self, model: nn.Module, epochs: int, *, validated: TrainedClassifier | None = None
    ) -> TrainedClassifier:
        picked, centred = copy.deepcopy(model), self.spec.centred
        if self.state is not None:
            picked.load_state_dict(self.state)
        device = next(picked.parameters()).device

        def predict(given: np.ndarray) -> np.ndarray:
            return _predictions(picked, torch.tensor(given, device=device), centred).cpu().numpy()

        return TrainedClassifier(self.spec.name, predict, self.epoch or epochs, validated)


def _network_input(images: Tensor, centred: bool) -> Tensor:
    values = images.float().div_(255.0)
    return (values * 2.0 - 1.0 if centred else values).contiguous(memory_format=torch.channels_last)


@torch.inference_mode()
def _predictions(model: nn.Module, images: Tensor, centred: bool) -> Tensor:
    model.eval()
    return torch.cat([model(_network_input(part, centred)).argmax(dim=1) for part in images.split(2048)])


LOGISTIC_REGRESSION = ClassifierSpec("LR", None)
MLP = ClassifierSpec("MLP", mlp, epochs=20)
CNN = ClassifierSpec("CNN", strided_cnn, epochs=10)
