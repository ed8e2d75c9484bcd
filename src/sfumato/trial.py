"""One trial of a comparison: a training under a budget, and its judgement. Each leaves files that are written whole."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.data.images import Images, Options
    from sfumato.methods import Method

# Torch is imported where it is used: a process says first how many threads it may have.

BASELINES = "baselines.json"
EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class Terms:
    """What all runs of a comparison share."""

    data: Path
    test: Path | None
    options: Options
    delta: float
    unit: str
    protocol: str
    images: int
    feature_images: int | None
    with_inception: bool
    device: str
    out: Path

    def facts(self) -> dict[str, Any]:
        """What may not change when a comparison goes on."""
        options = {key: list(value) if isinstance(value, tuple) else value for key, value in self.options.items()}
        return {
            "data": self.data.resolve().name,
            "reading": options,
            "delta": self.delta,
            "unit": self.unit,
            "protocol": self.protocol,
            "images": self.images,
            "feature_images": self.feature_images,
            "inception": self.with_inception,
        }


@dataclass(frozen=True)
class Cell:
    """One training: a configured method, a budget, and which repetition."""

    method: Method
    epsilon: float
    number: int

    @property
    def name(self) -> str:
        return label(self.method)

    def folder(self, out: Path) -> Path:
        return out / "runs" / self.name.replace(" ", "-") / f"epsilon-{self.epsilon:g}" / f"run-{self.number}"

    def __str__(self) -> str:
        return f"{self.name}, ε {self.epsilon:g}, run {self.number}"


def label(method: Method) -> str:
    """The method's name, with its variant where that is not the default one."""
    return method.name if method.variant == next(iter(method.variants)) else f"{method.name} {method.variant}"


def do(task: Cell | None, terms: Terms) -> None:
    """One cell, or the baselines, in a process of its own."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    train, real_test = _read(terms)
    if task is None:
        _measure_baselines(terms, train, real_test)
    else:
        train_cell(task, terms, train)
        _judge(task, terms, train, real_test)


def _read(terms: Terms) -> tuple[Images, Images]:
    from sfumato.data import read

    train = read(terms.data, **terms.options)
    options: Options = {**terms.options, "classes": train.classes, "split": "train" if terms.test else "test"}
    return train, read(terms.test or terms.data, **options)


def train_cell(cell: Cell, terms: Terms, train: Images) -> None:
    """A finished run in the cell's folder: begun, gone on with, or begun once more where a crash took an answer."""
    from sfumato.privacy.curator import AnswerLost

    folder = cell.folder(terms.out)
    if (folder / "release").exists():
        return
    if folder.exists() and not (folder / "ledger.jsonl").exists():
        shutil.rmtree(folder)  # killed before its first entry: nothing was asked, so nothing is lost
    try:
        _train(cell, terms, train)
    except AnswerLost:
        # Its ledger stays beside the new one's and counts in the total.
        lost = len(list(folder.parent.glob(f"{folder.name}.lost-*")))
        folder.rename(folder.with_name(f"{folder.name}.lost-{lost + 1}"))
        _train(cell, terms, train)


def _train(cell: Cell, terms: Terms, train: Images) -> None:
    from sfumato.cost import Cost
    from sfumato.data import PrivateImages
    from sfumato.methods.run import Run
    from sfumato.privacy import Budget
    from sfumato.report.folder import write_whole

    run = Run(cell.folder(terms.out))
    budget = Budget(cell.epsilon, terms.delta, terms.unit)  # type: ignore[arg-type]
    begun = (run.internal / "run.json").exists()
    for torn in run.folder.glob(".release-*"):
        shutil.rmtree(torn)
    facts = {"method": cell.method.name, "parameters": cell.method.parameters(), "budget": budget.to_json()}
    run.begin(facts, resume=begun)
    cost = Cost(terms.device, resumed=begun)
    release = cell.method.fit(
        PrivateImages.from_images(train),
        budget,
        run.ledger,
        device=terms.device,
        checkpoint=run.checkpoint,
        command=_command(cell, terms),
    )
    write_whole(run.internal / "cost.json", json.dumps(cost.so_far(), indent=2) + "\n", private=True)
    run.finish(release)


def _command(cell: Cell, terms: Terms) -> str:
    """For the card: how such a run is made; where the collection lies is nobody's business."""
    words = [f"sfumato train {cell.method.name} DATA --variant {cell.method.variant} --epsilon {cell.epsilon:g}"]
    words.append(f"--delta {terms.delta:g} --unit {terms.unit}")
    defaults = type(cell.method)(variant=cell.method.variant).parameters()
    words += [f"--set {key}={value}" for key, value in cell.method.parameters().items() if value != defaults[key]]
    for key, value in terms.options.items():
        text = ",".join(value) if isinstance(value, tuple) else value
        words.append(f"--{key.replace('_', '-')} {text}")
    return " ".join([*words, "--out RUN"])


def _judge(cell: Cell, terms: Terms, train: Images, real_test: Images) -> None:
    from sfumato.data import Images
    from sfumato.evaluation.memorisation import nearest_neighbours, write_view
    from sfumato.evaluation.run import MEMORISATION_IMAGES
    from sfumato.release import Release

    folder = cell.folder(terms.out)
    release = Release.load(folder / "release")
    pixels, labels = release.sample(terms.images, device=terms.device)
    looked_at = pixels[:MEMORISATION_IMAGES]
    found = nearest_neighbours(looked_at, train.pixels, real_test.pixels[:MEMORISATION_IMAGES], device=terms.device)
    write_view(folder / "internal" / "neighbours.png", found, synthetic=looked_at, real_train=train.pixels)
    guarantee = {key: release.card[key] for key in ("guarantee", "epsilon", "delta", "unit")}
    synthetic = Images(pixels, labels, release.classes)
    result = _evaluated(terms, synthetic, train, real_test, seed=cell.number, guarantee=guarantee)
    _write_json(folder / "internal" / EVALUATION, result)


def _measure_baselines(terms: Terms, train: Images, real_test: Images) -> None:
    """Once for all runs: they share data, protocol and number of images. Noise stands in for a generator."""
    from sfumato.data import Images
    from sfumato.evaluation.run import SYNTHETIC
    from sfumato.evaluation.sets import uniform_noise

    noise = uniform_noise(terms.images, len(train.classes), train.pixels.shape[1:])
    stand_in = Images(noise.pixels, noise.labels, train.classes)
    result = _evaluated(terms, stand_in, train, real_test, seed=0, guarantee=None)
    kept = [entry for entry in result["measurements"] if entry["row"] != SYNTHETIC]
    _write_json(terms.out / BASELINES, {**result, "measurements": kept, "internal": {}})


def _evaluated(
    terms: Terms, synthetic: Images, train: Images, real_test: Images, *, seed: int, guarantee: dict[str, Any] | None
) -> dict[str, Any]:
    from sfumato.evaluation.cache import default_folder
    from sfumato.evaluation.run import evaluate

    return evaluate(
        synthetic,
        train,
        real_test,
        protocol=terms.protocol,
        data=terms.data.resolve().name,
        seeds=[seed],
        device=terms.device,
        feature_images=terms.feature_images,
        cache=default_folder(),
        with_inception=terms.with_inception,
        baselines=guarantee is None,
        guarantee=guarantee,
    )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    from sfumato.report.folder import write_whole

    write_whole(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", private=True)
