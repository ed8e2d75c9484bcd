"""Train a classifier on one set of labelled images and score it on another: train on synthetic, test on real.

Training and scoring are two functions, and training never sees the test set. A specification that picks its best epoch
does so on images that it holds out of its training images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from sfumato.evaluation.classifier_networks import Shape, mlp, strided_cnn
from sfumato.evaluation.classifier_training import NetworkTraining, Pick, picked_network, predictions

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


@dataclass(frozen=True)
class TrainingJob:
    """Everything that one training of a classifier depends on.

    Attributes:
        spec: How it is trained.
        pixels: The training images, uint8 ``[N, C, H, W]``.
        labels: Their classes.
        classes: The number of classes.
        seed: The same seed gives the same classifier.
        validation: Other labelled images on which a second epoch is picked, as DPImageBench picks its epoch on
            sensitive images; the weights are those of the one training.
        device: Where the network runs.
        bfloat16: Whether the network's forward and backward passes in training are in bfloat16.
    """

    spec: ClassifierSpec
    pixels: np.ndarray
    labels: np.ndarray
    classes: int
    seed: int
    validation: tuple[np.ndarray, np.ndarray] | None = None
    device: str = "cpu"
    bfloat16: bool = False

    def __post_init__(self) -> None:
        """Refuse arrays of a wrong kind before a process is started for them."""
        _check(self.pixels, self.labels, self.classes)

    @property
    def trains_a_network(self) -> bool:
        """Whether there is a network, and more than one class to tell apart."""
        return self.spec.network is not None and len(np.unique(self.labels)) > 1

    def picks(self, progress: Progress = silent) -> list[Pick]:
        """Train the network: the weights of the picked epochs."""
        training = NetworkTraining(
            self.spec,
            self.pixels,
            self.labels,
            self.classes,
            self.seed,
            torch.device(self.device),
            bfloat16=self.bfloat16,
        )
        return training.run(self.validation, progress)

    def classifier(self, picks: Sequence[Pick]) -> TrainedClassifier:
        """The classifier with the picked weights."""
        first, *others = (self._with(pick) for pick in picks)
        return replace(first, validated=others[0]) if others else first

    def _with(self, pick: Pick) -> TrainedClassifier:
        shape: Shape = (self.pixels.shape[1], self.pixels.shape[2], self.pixels.shape[3])
        device, centred = torch.device(self.device), self.spec.centred
        network = picked_network(self.spec, shape, self.classes, pick, device)

        def predict(images: np.ndarray) -> np.ndarray:
            return predictions(network, torch.tensor(images, device=device), centred).cpu().numpy()

        return TrainedClassifier(self.spec.name, predict, pick.epoch)


def train_classifier(
    spec: ClassifierSpec,
    pixels: np.ndarray,
    labels: np.ndarray,
    *,
    classes: int,
    seed: int,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
    device: str | torch.device = "cpu",
    bfloat16: bool = False,
    progress: Progress = silent,
) -> TrainedClassifier:
    """Train a classifier on ``pixels`` (uint8 ``[N, C, H, W]``) and ``labels``; the arguments are a job's."""
    return train_job(TrainingJob(spec, pixels, labels, classes, seed, validation, str(device), bfloat16), progress)


def train_job(job: TrainingJob, progress: Progress = silent) -> TrainedClassifier:
    """Train a classifier in this process."""
    spec, labels = job.spec, job.labels
    if len(np.unique(labels)) < 2:
        # A collapsed generator: the only label is the only prediction, and scikit-learn would refuse to fit.
        constant = int(labels[0])
        return TrainedClassifier(spec.name, lambda images: np.full(len(images), constant), 0)
    if spec.network is None:
        return _logistic_regression(spec.name, job.pixels, labels, progress)
    return job.classifier(job.picks(progress))


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
