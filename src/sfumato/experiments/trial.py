"""One trial of a comparison: a training under a budget, and its judgement. Each leaves files that are written whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.files import private_folder, write_json

if TYPE_CHECKING:
    from sfumato.data.images import Images, Options
    from sfumato.methods import Method
    from sfumato.privacy import AnyBudget
    from sfumato.release import Release, SyntheticImages

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
    records: int | None = None
    test_records: int | None = None
    """How many training and test images are used; all of them unless it is given."""
    inception_head: Path | None = None

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
            "records": self.records,
            "test_records": self.test_records,
        }


@dataclass(frozen=True)
class Cell:
    """One training: a configured method, a budget, and which repetition. ``setting`` names it among several
    configurations of one method."""

    method: Method
    epsilon: float
    number: int
    setting: str = ""

    @property
    def name(self) -> str:
        return self.setting or label(self.method)

    def folder(self, out: Path) -> Path:
        return out / "runs" / slug(self.name) / f"epsilon-{self.epsilon:g}" / f"run-{self.number}"

    def budget(self, terms: Terms) -> AnyBudget:
        """None at all for an algorithm that needs the raw records."""
        from sfumato.privacy import Budget, NoGuarantee

        if self.method.variant in self.method.raw_variants:
            return NoGuarantee(unit=terms.unit)  # type: ignore[arg-type]
        return Budget(self.epsilon, terms.delta, terms.unit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.name}, ε {self.epsilon:g}, run {self.number}"


def label(method: Method) -> str:
    """The method's name, with its variant where that is not the default one."""
    return method.name if method.variant == next(iter(method.variants)) else f"{method.name} {method.variant}"


def slug(name: str) -> str:
    """A name as a folder has it."""
    return "-".join("".join(letter if letter.isalnum() or letter in "._" else " " for letter in name).split())


Measure = Callable[["Release", "Images", "Images", "Images"], list[dict[str, Any]]]
"""``measure(release, synthetic, train, test)``: more measurements than a protocol has."""


@dataclass(frozen=True)
class Look:
    """A way to draw from a training that is finished: parameters that only drawing uses may differ from it."""

    name: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return f"evaluation-{slug(self.name)}.json" if self.name else EVALUATION


@dataclass(frozen=True)
class Trial:
    """A training, and its judgement in every look at it: by the protocol, by ``measures``, or by both."""

    cell: Cell
    terms: Terms
    looks: tuple[Look, ...] = (Look(),)
    measures: tuple[Measure, ...] = ()
    by_protocol: bool = True

    def __str__(self) -> str:
        return str(self.cell)

    def finished(self) -> bool:
        folder = self.cell.folder(self.terms.out)
        return all(self._filtered(look) for look in self.looks) and _same_settings(self.cell, folder)

    def do(self) -> None:
        train, test = read_sets(self.terms)
        train_cell(self.cell, self.terms, train)
        for look in self.looks:
            if not self._filtered(look):
                self._judge(look, train, test)

    def _filtered(self, look: Look) -> bool:
        return (self.cell.folder(self.terms.out) / "internal" / look.file).exists()

    def _judge(self, look: Look, train: Images, test: Images) -> None:
        from sfumato.data import Images
        from sfumato.evaluation.evaluate import MEMORISATION_IMAGES
        from sfumato.evaluation.memorisation import nearest_neighbours, write_view
        from sfumato.evaluation.results import NOTICE

        terms, folder = self.terms, self.cell.folder(self.terms.out)
        release = release_for(folder, look)
        drawn = release.sample(terms.images, device=terms.device)
        pixels = drawn.images
        synthetic = Images(drawn.images, drawn.labels, drawn.classes)
        guarantee = release.card.summary().to_json()
        result: dict[str, Any] = {"notice": NOTICE, "measurements": [], "guarantee": guarantee}
        if self.by_protocol:
            looked_at = pixels[:MEMORISATION_IMAGES]
            found = nearest_neighbours(looked_at, train.pixels, test.pixels[:MEMORISATION_IMAGES], device=terms.device)
            write_view(folder / "internal" / "neighbours.png", found, synthetic=looked_at, real_train=train.pixels)
            result = _evaluated(terms, drawn, train, test, seed=self.cell.number)
        for measure in self.measures:
            result["measurements"] += measure(release, synthetic, train, test)
        write_json(folder / "internal" / look.file, result, private=True)


@dataclass(frozen=True)
class Baselines:
    """What real data and noise score: measured once for all trials that share data, protocol and number of images."""

    terms: Terms

    def __str__(self) -> str:
        return "baselines"

    def finished(self) -> bool:
        return (self.terms.out / BASELINES).exists()

    def do(self) -> None:
        _measure_baselines(self.terms, *read_sets(self.terms))


def begin(out: Path, facts: Mapping[str, Any], *, what: str) -> None:
    """A new folder for these facts, or one that was begun with the same and goes on."""
    path, written = out / "terms.json", json.loads(json.dumps(facts))
    if path.exists():
        before = json.loads(path.read_text())
        changed = sorted(key for key in {*before, *written} if before.get(key) != written.get(key))
        if changed:
            raise ValueError(f"{out} holds a {what} with another {', '.join(changed)}; choose another --out")
        return
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty and holds no {what}; choose another --out")
    private_folder(out)
    write_json(path, written, private=True)


def release_for(folder: Path, look: Look) -> Release:
    """The release of a run's folder, drawn from as the look wants it."""
    from sfumato.methods.registry import load

    release = load(folder / "release")
    return release.with_parameters(look.sampling) if look.sampling else release


def _same_settings(cell: Cell, folder: Path) -> bool:
    facts = json.loads((folder / "internal" / "run.json").read_text())
    if facts["parameters"] != json.loads(json.dumps(cell.method.parameters())):
        raise ValueError(f"{folder} holds a run with other parameters; choose another --out")
    return True


def read_sets(terms: Terms) -> tuple[Images, Images]:
    """Training and test images, as many of them as the terms say."""
    import numpy as np

    from sfumato.data import Images

    options = {key: tuple(value) if isinstance(value, list) else value for key, value in terms.options.items()}

    def part(images: Images, count: int | None) -> Images:
        if count is None or count >= len(images.pixels):
            return images
        rows = np.sort(np.random.default_rng(0).permutation(len(images.pixels))[:count])
        persons = None if images.persons is None else images.persons[rows]
        return Images(images.pixels[rows], images.labels[rows], images.classes, persons)

    train, test = _read(terms.data, terms.test, tuple(sorted(options.items())))
    return part(train, terms.records), part(test, terms.test_records)


@lru_cache(maxsize=2)
def _read(data: Path, other: Path | None, options: tuple[tuple[str, Any], ...]) -> tuple[Images, Images]:
    from sfumato.data import read

    given: Options = dict(options)  # type: ignore[assignment]
    train = read(data, **given)
    for_test: Options = {**given, "classes": train.classes, "split": "train" if other else "test"}
    return train, read(other or data, **for_test)


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
    from sfumato.data import PrivateImages
    from sfumato.training.cost import Cost
    from sfumato.training.run_folder import Run

    run = Run(cell.folder(terms.out))
    budget = cell.budget(terms)
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
    cost.keep(run.internal)
    run.finish(release)


def _command(cell: Cell, terms: Terms) -> str:
    """For the card: how such a run is made; where the collection lies is nobody's business."""
    words = [f"sfumato train DATA --method {cell.method.name} --variant {cell.method.variant}"]
    spent = cell.budget(terms).to_json()["epsilon"]
    words.append("--no-guarantee" if spent is None else f"--epsilon {spent:g} --delta {terms.delta:g}")
    words.append(f"--unit {terms.unit}")
    defaults = type(cell.method)(variant=cell.method.variant).parameters()
    words += [f"--set {key}={value}" for key, value in cell.method.parameters().items() if value != defaults[key]]
    for key, value in terms.options.items():
        text = ",".join(str(part) for part in value) if isinstance(value, list | tuple) else value
        words.append(f"--{key.replace('_', '-')} {text}")
    return " ".join([*words, "--out RUN"])


def _measure_baselines(terms: Terms, train: Images, real_test: Images) -> None:
    """Once for all runs: they share data, protocol and number of images. Noise stands in for a generator."""
    from sfumato.data import Images
    from sfumato.evaluation.evaluate import SYNTHETIC
    from sfumato.evaluation.image_sets import uniform_noise

    noise = uniform_noise(terms.images, len(train.classes), train.pixels.shape[1:])
    stand_in = Images(noise.pixels, noise.labels, train.classes)
    result = _evaluated(terms, stand_in, train, real_test, seed=0)
    kept = [entry for entry in result["measurements"] if entry["row"] != SYNTHETIC]
    write_json(terms.out / BASELINES, {**result, "measurements": kept, "internal": {}}, private=True)


def _evaluated(
    terms: Terms, synthetic: Images | SyntheticImages, train: Images, real_test: Images, *, seed: int
) -> dict[str, Any]:
    from sfumato.data import Images
    from sfumato.evaluation.cache import default_folder
    from sfumato.evaluation.evaluate import evaluate

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
        inception_head=terms.inception_head,
        baselines=isinstance(synthetic, Images),
    )
