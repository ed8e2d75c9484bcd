"""Tasks of an experiment: one training with its evaluations, and the baselines. Each leaves files written whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.data import Images, PrivateImages
from sfumato.evaluation.evaluate import MEMORISATION_IMAGES, evaluate
from sfumato.evaluation.features import default_folder
from sfumato.evaluation.measurements import uniform_noise
from sfumato.evaluation.private_views import nearest_neighbours, write_view
from sfumato.evaluation.results import NOTICE, SYNTHETIC
from sfumato.experiments.datasets import content_hash, read_images
from sfumato.experiments.measures import MEASURES, Sampled
from sfumato.experiments.spec import Conditions, EvaluationSpec, SamplingVariant, TrainingSpec, slug
from sfumato.files import private_folder, write_json
from sfumato.methods.registry import load
from sfumato.privacy.curator import AnswerLost
from sfumato.release import Release, SyntheticImages
from sfumato.training.run import RunOptions, train_run


def evaluation_file(variant: SamplingVariant, conditions: Conditions, place: int = 0) -> str:
    """The file in ``internal/`` with the numbers of a sampling variant by the protocol at this place."""
    words = ["evaluation"]
    words += [slug(variant.name)] if variant.name else []
    words += [conditions.evaluations[place].protocol] if place else []
    return "-".join(words) + ".json"


def baselines_file(conditions: Conditions, place: int = 0) -> Path:
    """Where the numbers of real images and noise are kept."""
    ending = f"-{conditions.evaluations[place].protocol}" if place else ""
    return conditions.out / f"baselines{ending}.json"


@dataclass(frozen=True)
class Trial:
    """A training, and the evaluation of every sampling variant by every protocol and by ``measures``."""

    training: TrainingSpec
    conditions: Conditions
    variants: tuple[SamplingVariant, ...] = (SamplingVariant(),)
    measures: tuple[str, ...] = ()
    by_protocol: bool = True

    def __str__(self) -> str:
        return f"{self.training} ({self.conditions.data.name})"

    @property
    def folder(self) -> Path:
        return self.training.folder(self.conditions.out)

    def finished(self) -> bool:
        """Whether the training and all evaluations are there; refuses a folder with other parameters."""
        if not all(self._path(variant, place).exists() for variant, place in self._evaluations()):
            return False
        before = json.loads((self.folder / "internal" / "run.json").read_text())
        if before["parameters"] != json.loads(json.dumps(self.training.method.parameters())):
            raise ValueError(f"{self.folder} holds a run with other parameters; choose another --out")
        return True

    def run(self) -> None:
        """Train and evaluate whatever is not there yet."""
        train, test = read_images(self.conditions.data)
        train_release(self.training, self.conditions, train)
        facts = {"sha256": content_hash(train, test), "records": len(train.pixels), "test_records": len(test.pixels)}
        write_json(self.folder / "internal" / "data.json", facts, private=True)
        for variant in self.variants:
            places = [place for own, place in self._evaluations() if own == variant]
            left = [place for place in places if not self._path(variant, place).exists()]
            if left:
                self._evaluate(variant, left, train, test)

    def _evaluations(self) -> Iterator[tuple[SamplingVariant, int]]:
        for variant in self.variants:
            for place in range(len(self.conditions.evaluations) if self.by_protocol else 1):
                yield variant, place

    def _path(self, variant: SamplingVariant, place: int) -> Path:
        return self.folder / "internal" / evaluation_file(variant, self.conditions, place)

    def _evaluate(self, variant: SamplingVariant, places: list[int], train: Images, test: Images) -> None:

        conditions, number = self.conditions, self.training.number
        release = release_for(self.folder, variant)
        count = max(evaluation.images for evaluation in conditions.evaluations)
        pixels, labels = release.sample(count, device=conditions.device)
        guarantee = release.card.summary().to_json()
        for place in places:
            evaluation = conditions.evaluations[place]
            sampled = SyntheticImages(pixels[: evaluation.images], labels[: evaluation.images], release.card)
            synthetic = Images(sampled.images, sampled.labels, sampled.classes)
            result: dict[str, Any] = {"notice": NOTICE, "measurements": [], "guarantee": guarantee}
            if self.by_protocol:
                self._write_neighbours(synthetic, train, test)
                result = evaluated(conditions, evaluation, sampled, train, test, seeds=[number], number=number)
            if place == 0:
                result["measures"] = self._measured(release, synthetic, train, test)
            write_json(self._path(variant, place), result, private=True)

    def _measured(self, release: Release, synthetic: Images, train: Images, test: Images) -> list[dict[str, Any]]:

        sampled = Sampled(release, synthetic, train, test, self.conditions.evaluations[0], self.conditions.device)
        return [measurement for name in self.measures for measurement in MEASURES[name](sampled)]

    def _write_neighbours(self, synthetic: Images, train: Images, test: Images) -> None:

        shown, others = synthetic.pixels[:MEMORISATION_IMAGES], test.pixels[:MEMORISATION_IMAGES]
        found = nearest_neighbours(shown, train.pixels, others, device=self.conditions.device)
        write_view(self.folder / "internal" / "neighbours.png", found, synthetic=shown, real_train=train.pixels)


@dataclass(frozen=True)
class Baselines:
    """Real data and noise, evaluated once for all trials of the same conditions, or one row of them ``only``."""

    conditions: Conditions
    trainings: int = 1
    only: str | None = None

    def __str__(self) -> str:
        return f"baselines of {self.conditions.data.name}"

    def finished(self) -> bool:
        return all(baselines_file(self.conditions, place).exists() for place in range(len(self.conditions.evaluations)))

    def run(self) -> None:
        """Evaluate noise in place of a generator, with the other baselines, by every protocol."""
        private_folder(self.conditions.out)
        train, test = read_images(self.conditions.data)
        digest = content_hash(train, test)
        for place, evaluation in enumerate(self.conditions.evaluations):
            noise = uniform_noise(evaluation.images, len(train.classes), train.pixels.shape[1:])
            instead = Images(noise.pixels, noise.labels, train.classes)
            seeds = range(self.trainings)
            result = evaluated(self.conditions, evaluation, instead, train, test, seeds=seeds, only=self.only)
            kept = [entry for entry in result["measurements"] if entry["row"] != SYNTHETIC]
            content = {**result, "measurements": kept, "internal": {}, "data_sha256": digest}
            write_json(baselines_file(self.conditions, place), content, private=True)


def release_for(folder: Path, variant: SamplingVariant) -> Release:
    """The release of a run's folder, with the parameters of a sampling variant."""
    release = load(folder / "release")
    return release.with_parameters(variant.parameters) if variant.parameters else release


def train_release(training: TrainingSpec, conditions: Conditions, train: Images) -> None:
    """Leave a finished run in the training's folder: new, resumed, or started again where a crash took an answer."""
    folder = training.folder(conditions.out)
    if (folder / "release").exists():
        return
    if folder.exists() and not (folder / "ledger.jsonl").exists():
        shutil.rmtree(folder)  # killed before its first entry: nothing was asked, so nothing is lost
    try:
        _train(training, conditions, train)
    except AnswerLost:
        # Its ledger stays beside the new one's and counts in the total.
        lost = len(list(folder.parent.glob(f"{folder.name}.lost-*")))
        folder.rename(folder.with_name(f"{folder.name}.lost-{lost + 1}"))
        _train(training, conditions, train)


def _train(training: TrainingSpec, conditions: Conditions, train: Images) -> None:

    folder, method = training.folder(conditions.out), training.method
    options = RunOptions(
        device=conditions.device,
        command=train_command(training, conditions),
        resume=(folder / "internal" / "run.json").exists(),
    )
    train_run(folder, method, PrivateImages.from_images(train), method.plan(training.budget(conditions)), options)


def train_command(training: TrainingSpec, conditions: Conditions) -> str:
    """For the card: the command of such a run, without the data and how they are read."""
    method = training.method
    words = [f"sfumato train DATA --method {method.name} --variant {method.variant}"]
    spent = training.budget(conditions).to_json()["epsilon"]
    words.append("--no-guarantee" if spent is None else f"--epsilon {spent:g} --delta {conditions.delta:g}")
    words.append(f"--unit {conditions.unit}")
    defaults = type(method)(variant=method.variant).parameters()
    words += [f"--set {key}={value}" for key, value in method.parameters().items() if value != defaults[key]]
    return " ".join([*words, "--out RUN"])


def evaluated(
    conditions: Conditions,
    evaluation: EvaluationSpec,
    synthetic: Images | SyntheticImages,
    train: Images,
    test: Images,
    *,
    seeds: Sequence[int],
    number: int = 0,
    only: str | None = None,
) -> dict[str, Any]:
    """An evaluation by the protocol; with the baselines where the images come from no release, or one row ``only``."""
    return evaluate(
        synthetic,
        train,
        test,
        protocol=evaluation.chosen_protocol(),
        data=conditions.data.name,
        seeds=list(seeds),
        device=conditions.device,
        feature_images=evaluation.feature_images,
        cache=default_folder(),
        with_inception=evaluation.with_inception(number),
        baselines=isinstance(synthetic, Images),
        only=only,
    ).to_json()
