"""The rows of one evaluation, synthetic images and baselines, and the accuracies and distances of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.data.images import Images
from sfumato.evaluation.classifiers import (
    Accuracy,
    ClassifierSpec,
    Progress,
    TrainedClassifier,
    score,
    train_classifier,
)
from sfumato.evaluation.features import (
    FeatureNetwork,
    FeatureStatistics,
    cached_statistics,
    content_key,
    frechet_distance,
    kernel_distance,
    manifold,
)
from sfumato.evaluation.protocols import Protocol
from sfumato.evaluation.results import (
    HALVES,
    NOISE,
    REAL,
    SYNTHETIC,
    ClassAccuracy,
    FeatureIdentity,
    ImageSet,
    Measurement,
    class_accuracies,
    mean_and_std,
    metric_named,
)
from sfumato.release.card import Guarantee
from sfumato.release.synthetic import SyntheticImages

SPLIT_SEED = 0
"""Fixes subsets, halves and noise, so that their features can be found in the cache again."""

AnyImages = Images | SyntheticImages


@dataclass(frozen=True)
class LabelledImages:
    """Images whose labels are numbers into the evaluation's one label set."""

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def first(self, count: int | None) -> LabelledImages:
        """At most ``count`` random images: the first of one fixed order, so that a smaller set is part of a larger."""
        return self if count is None or count >= len(self) else self._rows(self._order()[:count])

    def halves(self, count: int | None) -> tuple[LabelledImages, LabelledImages]:
        """At most ``count`` images of each of two disjoint halves; the first ones are those of ``first``."""
        middle = len(self) // 2
        count = middle if count is None else min(count, middle)
        order = self._order()
        return self._rows(order[:count]), self._rows(order[middle : middle + count])

    def _order(self) -> np.ndarray:
        return np.random.default_rng(SPLIT_SEED).permutation(len(self))

    def _rows(self, rows: np.ndarray) -> LabelledImages:
        rows = np.sort(rows)
        return LabelledImages(self.pixels[rows], self.labels[rows])


def aligned(given: AnyImages, classes: Sequence[str], shape: tuple[int, ...], *, name: str) -> LabelledImages:
    """The images with their labels renumbered into ``classes`` by name."""
    pixels = given.images if isinstance(given, SyntheticImages) else given.pixels
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != shape:
        raise ValueError(
            f"{name} images must be uint8 of shape {shape} (channels, height, width) like the real training images, "
            f"not {pixels.dtype} {pixels.shape[1:]}; read both with the same size and colour"
        )
    if len(pixels) != len(given.labels):
        raise ValueError(f"{name}: there must be one label for each image; the two counts differ")
    if len(pixels) < 2:
        raise ValueError(f"{name}: an evaluation needs at least two images")
    labels = np.asarray(given.labels, dtype=np.int64)
    if tuple(given.classes) == tuple(classes):
        return LabelledImages(pixels, labels)
    unknown = [entry for entry in given.classes if entry not in classes]
    if unknown:
        raise ValueError(
            f"{name} images declare the classes {unknown}, which the real data does not have; its label set is "
            f"{list(classes)}. Class names must agree, their order need not"
        )
    places = np.array([list(classes).index(entry) for entry in given.classes], dtype=np.int64)
    return LabelledImages(pixels, places[labels])


def uniform_noise(count: int, classes: int, shape: tuple[int, ...]) -> LabelledImages:
    """Pixels and labels that know nothing of the data: a baseline that any generator should exceed."""
    random = np.random.default_rng(SPLIT_SEED)
    return LabelledImages(
        random.integers(0, 256, size=(count, *shape), dtype=np.uint8), np.arange(count, dtype=np.int64) % classes
    )


@dataclass(frozen=True)
class Measuring:
    """Makes the measurements of an evaluation: protocol, data, classes and guarantee are repeated with each."""

    protocol: str
    data: str
    classes: tuple[str, ...]
    guarantee: Guarantee | None

    def measurement(
        self,
        metric: str,
        values: Sequence[float],
        *,
        row: str,
        candidate: ImageSet,
        reference: ImageSet,
        seeds: Sequence[int],
        std_over: str,
        std: float | None = None,
        classifier: str | None = None,
        features: FeatureIdentity | None = None,
        settings: Mapping[str, Any] | None = None,
        per_class: tuple[ClassAccuracy, ...] | None = None,
    ) -> Measurement:
        """Mean and standard deviation of ``values``; ``std`` replaces the deviation where the metric has its own."""
        mean, deviation = mean_and_std(values)
        present = [one for one in per_class or () if one.mean is not None]
        return Measurement(
            row=row,
            metric=metric_named(metric).name,
            classifier=classifier,
            mean=mean,
            std=deviation if std is None else std,
            std_over=std_over,
            values=tuple(values),
            per_class=per_class,
            worst_class=min(present, key=lambda one: one.mean or 0.0) if present else None,
            protocol=self.protocol,
            data=self.data,
            candidate=candidate,
            reference=reference,
            features=features,
            seeds=tuple(seeds),
            settings=dict(settings or {}),
            guarantee=self.guarantee,
        )


@dataclass(frozen=True)
class Part:
    """Images and what a result says about them."""

    images: LabelledImages
    described: ImageSet

    @classmethod
    def of(cls, data: str, split: str | None, images: LabelledImages) -> Part:
        """Images under a description."""
        return cls(images, ImageSet(data, split, len(images)))


@dataclass(frozen=True)
class Row:
    """The image sets of one row.

    A classifier is trained on ``train`` and tested on ``test``; the features of ``compared`` are compared with those of
    ``reference``.
    """

    name: str
    train: Part
    test: Part
    compared: Part
    reference: Part


def evaluation_rows(
    protocol: Protocol,
    synthetic: LabelledImages,
    train: LabelledImages,
    test: LabelledImages,
    *,
    classes: int,
    feature_images: int | None,
) -> list[Row]:
    """The synthetic row first; baselines use as many real or noise images as there are synthetic ones."""
    size = len(synthetic)
    other = "train" if protocol.reference == "test" else "test"
    splits = {"train": train.first(feature_images), "test": test.first(feature_images)}
    tested = Part.of("real", "test", test)
    reference = Part.of("real", protocol.reference, splits[protocol.reference])
    noise = uniform_noise(size, classes, train.pixels.shape[1:])
    (left, right), (left_compared, right_compared) = train.halves(size), train.halves(feature_images)
    first, second = "train, first half", "train, second half"
    return [
        Row(
            SYNTHETIC,
            Part.of("synthetic", None, synthetic),
            tested,
            Part.of("synthetic", None, synthetic.first(feature_images)),
            reference,
        ),
        # The distance of a set from itself says nothing: the split that is not the reference is compared.
        Row(
            REAL, Part.of("real", "train", train.first(size)), tested, Part.of("real", other, splits[other]), reference
        ),
        Row(
            HALVES,
            Part.of("real", first, left),
            Part.of("real", second, right),
            Part.of("real", first, left_compared),
            Part.of("real", second, right_compared),
        ),
        Row(
            NOISE,
            Part.of("uniform noise", None, noise),
            tested,
            Part.of("uniform noise", None, noise.first(feature_images)),
            reference,
        ),
    ]


@dataclass(frozen=True)
class _Scores:
    """The classifiers of one specification, and their accuracies by repetition."""

    spec: ClassifierSpec
    seeds: tuple[int, ...]
    trained: tuple[TrainedClassifier, ...]
    accuracies: tuple[Accuracy, ...]


class AccuracyMeasure:
    """Trains and scores every classifier of a protocol."""

    def __init__(
        self,
        protocol: Protocol,
        measuring: Measuring,
        *,
        seeds: Sequence[int],
        device: torch.device,
        progress: Progress,
    ) -> None:
        self.protocol, self.measuring, self.seeds = protocol, measuring, tuple(seeds)
        self.device, self.progress = device, progress

    def measure(self, row: Row) -> tuple[list[Measurement], TrainedClassifier]:
        """The row's accuracies, and its classifier for label agreement, of the first seed."""
        found = self._scores(row)
        measured = [self._accuracy(scores, row) for scores in found]
        named = next(one for one in found if one.spec.name == self.protocol.agreement_classifier)
        return measured, named.trained[0]

    def agreement(self, classifier: TrainedClassifier, synthetic: Row, real: Row) -> Measurement:
        """How often a classifier that was trained on real data predicts the label a synthetic image was made for."""
        found = self._score(classifier, synthetic.train.images)
        return self.measuring.measurement(
            "label_agreement",
            [found.overall],
            row=synthetic.name,
            classifier=classifier.name,
            candidate=synthetic.train.described,
            reference=real.train.described,
            seeds=self.seeds[:1],
            std_over="generators",
            per_class=class_accuracies([found], self.measuring.classes),
        )

    def trainings(self) -> int:
        return sum(len(self._seeds(spec)) for spec in self.protocol.classifiers)

    def _scores(self, row: Row) -> list[_Scores]:
        found = []
        for spec in self.protocol.classifiers:
            seeds = self._seeds(spec)
            own = tuple(self._trained(spec, row.train, seed) for seed in seeds)
            accuracies = tuple(self._score(one, row.test.images) for one in own)
            found.append(_Scores(spec, seeds, own, accuracies))
        return found

    def _seeds(self, spec: ClassifierSpec) -> tuple[int, ...]:
        # Logistic regression has no randomness: another seed would only repeat it.
        return self.seeds[:1] if spec.network is None else self.seeds

    def _trained(self, spec: ClassifierSpec, train: Part, seed: int) -> TrainedClassifier:
        return train_classifier(
            spec,
            train.images.pixels,
            train.images.labels,
            classes=len(self.measuring.classes),
            seed=seed,
            device=self.device,
            progress=lambda task, done, total: self.progress(f"{train.described.data}: {task}", done, total),
        )

    def _score(self, classifier: TrainedClassifier, images: LabelledImages) -> Accuracy:
        return score(classifier, images.pixels, images.labels, classes=len(self.measuring.classes))

    def _accuracy(self, scores: _Scores, row: Row) -> Measurement:
        spec, seeds = scores.spec, scores.seeds
        return self.measuring.measurement(
            "accuracy",
            [one.overall for one in scores.accuracies],
            row=row.name,
            classifier=spec.name,
            candidate=row.train.described,
            reference=row.test.described,
            seeds=seeds,
            std_over="classifier seeds" if spec.network else "nothing: the classifier has no randomness",
            per_class=class_accuracies(scores.accuracies, self.measuring.classes),
            settings={
                "epochs": spec.epochs,
                "batch": spec.batch,
                "selection": self.protocol.selection,
                "selected_epochs": [one.epoch for one in scores.trained],
            },
        )


NEIGHBOURS = 5
SUBSETS = 100


class DistanceMeasure:
    """Compares rows by the features of one network; each set of images goes through the network once.

    Only values of the published Inception network are called FID and KID.
    """

    def __init__(
        self,
        network: FeatureNetwork,
        measuring: Measuring,
        *,
        cache: Path | None,
        device: torch.device,
        progress: Progress,
    ) -> None:
        self.network, self.measuring, self.identity = network, measuring, network.identity()
        self.cache = cache if self.identity.published else None
        self.device, self.progress = device, progress
        self._known: dict[str, FeatureStatistics] = {}

    def measure(self, row: Row) -> list[Measurement]:
        # Statistics of synthetic images are not kept in the cache: a next training has other images.
        keep = row.name != SYNTHETIC
        reference = self._statistics(row.reference.images, row.name, keep=True)
        candidate = self._statistics(row.compared.images, row.name, keep=keep)
        self.progress(f"{row.name}: distances", 0, 1)
        name = "fid" if self.identity.published else "frechet_distance"
        measured = [self._measured(name, frechet_distance(reference, candidate), row)]
        if self.identity.published:
            mean, deviation, size = kernel_distance(reference, candidate, subsets=SUBSETS)
            # As papers print it, KID's deviation is the one over its subsets.
            how = {"subsets": SUBSETS, "subset_size": size, "subset_std": deviation}
            measured.append(self._measured("kid", mean, row, how, std=deviation))
        found = manifold(reference.rows, candidate.rows, neighbours=NEIGHBOURS)
        settings = {"neighbours": NEIGHBOURS, "rows": [len(reference.rows), len(candidate.rows)]}
        measured += [self._measured(metric, value, row, settings) for metric, value in asdict(found).items()]
        self.progress(f"{row.name}: distances", 1, 1)
        return measured

    def _statistics(self, images: LabelledImages, row: str, *, keep: bool) -> FeatureStatistics:
        key = content_key(images.pixels, self.network)
        if key not in self._known:
            self._known[key] = cached_statistics(
                self.network,
                images.pixels,
                folder=self.cache if keep else None,
                device=self.device,
                progress=lambda task, done, total: self.progress(f"{row}: {task}", done, total),
            )
        return self._known[key]

    def _measured(
        self, metric: str, value: float, row: Row, settings: dict[str, Any] | None = None, *, std: float | None = None
    ) -> Measurement:
        return self.measuring.measurement(
            metric,
            [value],
            row=row.name,
            candidate=row.compared.described,
            reference=row.reference.described,
            features=self.identity,
            seeds=[],
            std=std,
            std_over="generators" if std is None else "subsets",
            settings=settings,
        )
