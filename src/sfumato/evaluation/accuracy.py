"""Accuracies of an evaluation: train on each row's images, test on real ones, and label agreement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from sfumato.evaluation.classifier_pool import train_classifiers
from sfumato.evaluation.classifiers import Accuracy, ClassifierSpec, Progress, TrainedClassifier, TrainingJob, score
from sfumato.evaluation.image_sets import LabelledImages
from sfumato.evaluation.measuring import Measuring
from sfumato.evaluation.protocols import Protocol
from sfumato.evaluation.results import Measurement, class_accuracies
from sfumato.evaluation.rows import Part, Row

VALIDATED = "best epoch on real validation images, as DPImageBench picks it; not private"
"""The selection of DPImageBench: the epoch is picked on un-noised sensitive images."""


@dataclass(frozen=True)
class _Scores:
    """The classifiers of one specification, and their accuracies by repetition."""

    spec: ClassifierSpec
    seeds: tuple[int, ...]
    trained: tuple[TrainedClassifier, ...]
    accuracies: tuple[Accuracy, ...]
    validated: tuple[Accuracy, ...]


class AccuracyMeasure:
    """Trains and scores every classifier of a protocol, ``together`` of them at a time."""

    def __init__(
        self,
        protocol: Protocol,
        measuring: Measuring,
        *,
        seeds: Sequence[int],
        validation: LabelledImages | None,
        device: torch.device,
        progress: Progress,
        bfloat16: bool = False,
        together: int = 1,
    ) -> None:
        self.protocol, self.measuring, self.seeds = protocol, measuring, tuple(seeds)
        self.validation, self.device, self.progress = validation, device, progress
        self.bfloat16, self.together = bfloat16, together

    def measure(self, row: Row) -> tuple[list[Measurement], TrainedClassifier]:
        """The row's accuracies, and its classifier for label agreement, of the first seed."""
        found = self._scores(row)
        measured = [one for scores in found for one in self._measurements(scores, row)]
        if self.protocol.several_networks:
            measured += self._over_networks(found, row)
        named = next(one for one in found if one.spec.name == self.protocol.agreement_classifier)
        return measured, named.trained[0]

    def agreement(self, classifier: TrainedClassifier, synthetic: Row, real: Row) -> Measurement:
        """How often a classifier that was trained on real data predicts the label a synthetic image was made for."""
        found = [self._score(classifier, part) for part in synthetic.train.sets]
        return self.measuring.measurement(
            "label_agreement",
            [one.overall for one in found],
            row=synthetic.name,
            classifier=classifier.name,
            candidate=synthetic.train.described,
            reference=real.train.described,
            seeds=self.seeds[:1],
            std_over="generators",
            per_class=class_accuracies(found, self.measuring.classes),
        )

    def _scores(self, row: Row) -> list[_Scores]:
        """Of every classifier of the protocol; all of their trainings are one list of jobs."""
        planned = [(spec, self._seeds(spec, row)) for spec in self.protocol.classifiers]
        jobs = [self._job(spec, row.train, place, seed) for spec, seeds in planned for place, seed in enumerate(seeds)]
        trained = iter(train_classifiers(jobs, together=self.together, progress=self._reported(row.train)))
        found = []
        for spec, seeds in planned:
            own = tuple(islice(trained, len(seeds)))
            accuracies = tuple(self._score(one, row.test.only) for one in own)
            validated = tuple(self._score(one.validated, row.test.only) for one in own if one.validated is not None)
            found.append(_Scores(spec, seeds, own, accuracies, validated))
        return found

    def _seeds(self, spec: ClassifierSpec, row: Row) -> tuple[int, ...]:
        # Logistic regression has no randomness: on one set another seed would only repeat it.
        return self.seeds[:1] if spec.network is None and len(row.train.sets) == 1 else self.seeds

    def _job(self, spec: ClassifierSpec, train: Part, place: int, seed: int) -> TrainingJob:
        part = train.sets[place if len(train.sets) > 1 else 0]
        aside = self.validation if self.protocol.several_networks else None
        return TrainingJob(
            spec,
            part.pixels,
            part.labels,
            classes=len(self.measuring.classes),
            seed=seed,
            validation=None if aside is None else (aside.pixels, aside.labels),
            device=str(self.device),
            bfloat16=self.bfloat16 and spec.network is not None,
        )

    def _reported(self, train: Part) -> Progress:
        return lambda task, done, total: self.progress(f"{train.described.data}: {task}", done, total)

    def _score(self, classifier: TrainedClassifier, images: LabelledImages) -> Accuracy:
        return score(classifier, images.pixels, images.labels, classes=len(self.measuring.classes))

    def _measurements(self, scores: _Scores, row: Row) -> Iterator[Measurement]:
        spec = scores.spec
        settings: dict[str, Any] = {"epochs": spec.epochs, "batch": spec.batch}
        if spec.network is not None:
            settings["arithmetic"] = "bfloat16" if self.bfloat16 else "float32"
        picked = {"selection": self.protocol.selection, "selected_epochs": [one.epoch for one in scores.trained]}
        yield self._accuracy(spec.name, scores.accuracies, scores.seeds, row, settings | picked, by_class=True)
        if scores.validated:
            epochs = [one.validated.epoch for one in scores.trained if one.validated is not None]
            picked = {"selection": VALIDATED, "selected_epochs": epochs}
            name = f"{spec.name}, validated on real images"
            yield self._accuracy(name, scores.validated, scores.seeds, row, settings | picked, by_class=True)

    def _over_networks(self, found: Sequence[_Scores], row: Row) -> Iterator[Measurement]:
        names = ", ".join(one.spec.name for one in found)
        if all(one.validated for one in found):
            columns = zip(*(one.validated for one in found), strict=True)
            best = [max(column, key=lambda one: one.overall) for column in columns]
            name = f"best of {names}, validated on real images"
            yield self._accuracy(name, best, self.seeds, row, {"selection": VALIDATED}, by_class=False)
        columns = zip(*(one.accuracies for one in found), strict=True)
        means = [Accuracy(sum(one.overall for one in column) / len(column), ()) for column in columns]
        yield self._accuracy(f"mean of {names}", means, self.seeds, row, {}, by_class=False)

    def _accuracy(
        self,
        classifier: str,
        accuracies: Sequence[Accuracy],
        seeds: Sequence[int],
        row: Row,
        settings: dict[str, Any],
        *,
        by_class: bool,
    ) -> Measurement:
        several = len(row.train.sets) > 1
        repeated = "generators, one classifier each" if several else "classifier seeds"
        fixed = len(seeds) < len(self.seeds)
        return self.measuring.measurement(
            "accuracy",
            [one.overall for one in accuracies],
            row=row.name,
            classifier=classifier,
            candidate=row.train.described,
            reference=row.test.described,
            seeds=seeds,
            std_over="nothing: the classifier has no randomness" if fixed else repeated,
            per_class=class_accuracies(accuracies, self.measuring.classes) if by_class else None,
            settings=settings,
        )
