"""What DPPM reaches: accuracy, FID and pictures at stated budgets, and what each setting is worth.

    python benchmarks/dppm.py show DATA --epsilon 1 --epsilon 10 --seeds 3 --out OUT     the default settings
    python benchmarks/dppm.py tune DATA --epsilon 10 --out OUT                           one change at a time
    python benchmarks/dppm.py sample DATA --images 60000 --out OUT                       samplers: seconds and accuracy
    python benchmarks/dppm.py published DATA --out OUT                                   the paper's own training
    python benchmarks/dppm.py step DATA --out OUT                                        private against plain step

DATA is a folder with idx files (MNIST, Fashion-MNIST) or anything else with the splits "train" and "test"; the word
"digits" stands for drawn digits, which need no file. --tiny takes a network and a collection that a CPU can carry in a
minute, to see that all of it runs.
--set key=value changes a parameter of the method and may be given several times. OUT gets results.json, which grows by
one entry a training, results.md, and a grid of pictures for each training; --save also keeps the releases.

Trainings draw their noise from the operating system; --seeds counts repetitions. The pictures of each are judged by one
CNN of the "sinkhorn" protocol, on the real test split. All of it is evaluation on public collections: NOT PRIVATE.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.data.digits import draw_digits
from sfumato.data.images import Images, PrivateImages, read
from sfumato.evaluation.classifiers import CNN, Recipe, learn, score
from sfumato.evaluation.features import extract
from sfumato.evaluation.fidelity import frechet_distance, statistics
from sfumato.evaluation.inception import inception
from sfumato.methods.dppm import DPPM
from sfumato.networks.score import ScoreNetwork
from sfumato.privacy import AnyBudget, Budget, NoGuarantee
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.privacy.randomness import Randomness
from sfumato.release import Release
from sfumato.release.grid import grid

CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"warm_start": False},
    {"draws": 1},
    {"draws": 16},
    {"rate": 0.1},
    {"rate": 0.1, "steps": 500},
    {"steps": 300},
    {"steps": 3000},
    {"clip": 0.01},
    {"clip": 1.0},
    {"learning_rate": 0.0007},
    {"learning_rate": 0.006},
    {"average": 0.98},
    {"average": 0.9995},
    {"level_mean": -1.2},
    {"level_mean": -0.2},
    {"level_deviation": 0.8},
    {"spread": 0.35},
    {"width": 24},
    {"width": 48},
    {"patch": 2},
    {"patch": 2, "width": 48, "coarsest": 7, "draws": 8},
    {"patch": 2, "width": 48, "coarsest": 7, "rate": 0.1, "draws": 8},
    {"half_precision": True},
    {"mean_noise": 1.0},
    {"mean_noise": 4.0},
    {"objective": "sliced", "steps": 200},
    {"objective": "sliced", "steps": 200, "response": 1.0},
)
"""One at a time, against the first."""

SAMPLERS: tuple[dict[str, Any], ...] = (
    {"sampler": "heun", "levels": 9},
    {"sampler": "heun", "levels": 18},
    {"sampler": "heun", "levels": 36},
    *({"sampler": "hamiltonian", "levels": levels} for levels in (10, 20, 40, 80)),
    {"sampler": "hamiltonian", "leapfrog": 6, "step_size": 0.25},
    {"sampler": "hamiltonian", "leapfrog": 2, "step_size": 0.8},
    {"sampler": "hamiltonian", "metropolis": False},
    {"sampler": "hamiltonian", "decay": -2.0},
    {"sampler": "hamiltonian", "kinetic": "rayleigh"},
    {"sampler": "hamiltonian", "kinetic": "uniform"},
    {"sampler": "hamiltonian", "largest_level": 40.0},
    {"sampler": "hamiltonian", "smallest_level": 0.1},
)

TINY = {
    "width": 8, "patch": 2, "rate": 0.1, "steps": 20, "draws": 2, "levels": 6, "iterations": 5, "batch": 16,
    "learning_rate": 0.004, "average": 0.9,
}  # fmt: skip


class Study:
    """The data, what is measured on it, and the files in which it is written down."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.device = arguments, arguments.device
        self.train, self.test = _data(arguments)
        self.private = PrivateImages.from_images(self.train)
        self.count = arguments.images or (300 if arguments.tiny else 60_000)
        self.out: Path = arguments.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.file = self.out / "results.json"
        self.results: list[dict[str, Any]] = json.loads(self.file.read_text()) if self.file.exists() else []
        self.features: Any = None
        settings = dict(TINY) if arguments.tiny else {}
        settings |= dict(text.split("=", 1) for text in arguments.set)
        self.method = DPPM.configured(settings)

    def train_one(self, method: DPPM, budget: AnyBudget) -> tuple[Release, float]:
        self.synchronise()
        start = time.perf_counter()
        release = method.fit(self.private, budget, device=self.device)
        self.synchronise()
        return release, time.perf_counter() - start

    def measure(self, release: Release, entry: Mapping[str, Any]) -> None:
        """Draw, judge, write down."""
        start = time.perf_counter()
        images, labels = release.sample(self.count, batch=self.arguments.batch, device=self.device)
        self.synchronise()
        seconds = time.perf_counter() - start
        classes, number = len(self.train.classes), len(self.results)
        recipe = Recipe("CNN", CNN.network, epochs=2) if self.arguments.tiny else CNN
        learned = learn(recipe, images, labels, classes=classes, seed=number, device=self.device)
        accuracy = score(learned, self.test.pixels, self.test.labels, classes=classes)
        rows = [np.flatnonzero(labels == label)[:10] for label in range(classes)]
        picture = f"grid-{number:03d}.png"
        grid(images[np.concatenate(rows)], columns=10, scale=2).save(self.out / picture)
        self.write(
            {
                **entry,
                "records": len(self.train.pixels),
                "images": self.count,
                "sampling_seconds": seconds,
                "accuracy": 100 * accuracy.overall,
                "worst_class": 100 * (accuracy.worst_class or 0.0),
                "fid": self.distance(images) if self.arguments.fid else None,
                "picture": picture,
            }
        )

    def distance(self, images: np.ndarray) -> float:
        """FID against the real test split, on as many images as it has."""
        if self.features is None:
            network = inception()
            self.features = network, statistics(extract(network, self.test.pixels, device=self.device))
        network, real = self.features
        return frechet_distance(real, statistics(extract(network, images[: len(self.test.pixels)], device=self.device)))

    def write(self, entry: Mapping[str, Any]) -> None:
        arguments = self.arguments
        machine = torch.cuda.get_device_name() if "cuda" in self.device else f"CPU, {torch.get_num_threads()} threads"
        about = {"mode": arguments.mode, "data": Path(arguments.data).name, "machine": machine}
        self.results.append({**about, "torch": torch.__version__, **entry})
        self.file.write_text(json.dumps(self.results, indent=2) + "\n")
        (self.out / "results.md").write_text(_table(self.results))
        print(json.dumps(self.results[-1]), flush=True)

    def synchronise(self) -> None:
        if "cuda" in self.device:
            torch.cuda.synchronize()

    def budgets(self) -> Iterator[tuple[Budget, int]]:
        for epsilon in self.arguments.epsilon:
            for number in range(self.arguments.seeds):
                yield Budget(epsilon, 1e-5), number

    def keep(self, release: Release, name: str) -> None:
        if self.arguments.save:
            release.save(self.out / f"release-{len(self.results):03d}-{name}")


def show(study: Study) -> None:
    for budget, number in study.budgets():
        release, seconds = study.train_one(study.method, budget)
        study.keep(release, f"{budget.epsilon:g}")
        entry = {"epsilon": budget.epsilon, "repetition": number, "change": {}, "training_seconds": seconds}
        study.measure(release, {**entry, "parameters": study.method.parameters()})


def tune(study: Study) -> None:
    chosen = study.arguments.change
    for budget, number in study.budgets():
        for index, change in enumerate(CHANGES):
            if chosen and index not in chosen:
                continue
            method = replace(study.method, **change)
            release, seconds = study.train_one(method, budget)
            entry = {"epsilon": budget.epsilon, "repetition": number, "change": change, "training_seconds": seconds}
            study.measure(release, {**entry, "parameters": method.parameters()})


def sample(study: Study) -> None:
    """One training, many ways to draw from it."""
    for budget, number in study.budgets():
        release, seconds = study.train_one(study.method, budget)
        study.keep(release, f"{budget.epsilon:g}")
        for change in SAMPLERS:
            method = replace(study.method, **change)
            release.method = method
            entry = {"epsilon": budget.epsilon, "repetition": number, "change": change, "training_seconds": seconds}
            study.measure(release, {**entry, "parameters": method.parameters()})


def published(study: Study) -> None:
    method = replace(study.method, variant="published")
    for epsilon in study.arguments.epsilon:
        method = replace(method, response=epsilon)
        release, seconds = study.train_one(method, NoGuarantee())
        entry = {"epsilon": None, "claimed": epsilon, "change": {}, "training_seconds": seconds}
        study.measure(release, {**entry, "parameters": method.parameters()})


def step(study: Study) -> None:
    """The same rows, the same loss: a clipped sum, and a plain backward pass, in turn."""
    method, device = study.method, torch.device(study.device)
    units = 24 if study.arguments.tiny else 1024
    shape: tuple[int, int, int] = study.train.pixels.shape[1:]
    model = method.build(shape, len(study.train.classes)).to(device)
    if not isinstance(model, ScoreNetwork):
        raise SystemExit("the private step is that of the certified variant")
    ids = torch.arange(units * method.draws, device=device) // method.draws
    draws = Randomness(0).draws(ids, torch.arange(len(ids), device=device) % method.draws, "benchmark")
    images = torch.as_tensor(study.train.pixels[:units]).to(device).float().div(255).repeat_interleave(method.draws, 0)
    labels = torch.as_tensor(study.train.labels[:units]).to(device).repeat_interleave(method.draws)
    batch = Batch(images, labels, draws, torch.full((units, method.draws), 1 / method.draws, device=device))
    seconds: dict[str, list[float]] = {"plain": [], "private": []}
    for _ in range(3 if study.arguments.tiny else 12):
        for way, times in seconds.items():
            study.synchronise()
            start = time.perf_counter()
            if way == "private":
                clipped_sum(model, method.loss, batch, method.clip)
            else:
                method.loss(model, images, labels, draws).mean().backward()
                model.zero_grad(set_to_none=True)
            study.synchronise()
            times.append(time.perf_counter() - start)
    # The first rounds choose algorithms.
    plain, private = (float(np.median(times[len(times) // 3 :])) for times in seconds.values())
    entry = {"units": units, "draws": method.draws, "plain_ms": 1000 * plain, "private_ms": 1000 * private}
    study.write({**entry, "ratio": private / plain, "examples_per_second": len(ids) / private})


def _data(arguments: argparse.Namespace) -> tuple[Images, Images]:
    records = arguments.records or (400 if arguments.tiny else 60_000)
    if arguments.data == "digits":
        return draw_digits(records, seed=0), draw_digits(max(200, records // 6), seed=1)
    train, test = (read(arguments.data, split=name, infer_classes=True) for name in ("train", "test"))
    if not (arguments.records or arguments.tiny):
        return train, test
    return Images(train.pixels[:records], train.labels[:records], train.classes), test


def _table(results: list[dict[str, Any]]) -> str:
    """Everything that was drawn and judged, in the order it was run."""
    lines = ["| data | mode | ε | change | training s | sampling s | CNN % | worst class % | FID |", "|" + "---|" * 9]
    for entry in results:
        if "accuracy" not in entry:
            continue
        change = ", ".join(f"{key} {value}" for key, value in entry["change"].items()) or "–"
        epsilon = "∞" if entry["epsilon"] is None else f"{entry['epsilon']:g}"
        fid = "–" if entry["fid"] is None else f"{entry['fid']:.1f}"
        seconds = f"{entry['training_seconds']:.0f} | {entry['sampling_seconds']:.1f}"
        accuracy = f"{entry['accuracy']:.1f} | {entry['worst_class']:.1f}"
        lines.append(f"| {entry['data']} | {entry['mode']} | {epsilon} | {change} | {seconds} | {accuracy} | {fid} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    modes = {"show": show, "tune": tune, "sample": sample, "published": published, "step": step}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=modes)
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--images", type=int, default=None, help="synthetic images that are drawn and judged")
    parser.add_argument("--records", type=int, default=None, help="train on the first so many, or draw so many digits")
    parser.add_argument("--batch", type=int, default=5000, help="images drawn at once")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--change", type=int, action="append", help="only these of the changes that tune knows")
    parser.add_argument("--fid", action="store_true", help="measure FID, which needs the Inception network's weights")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    arguments.epsilon = arguments.epsilon or [10.0]
    modes[arguments.mode](Study(arguments))


if __name__ == "__main__":
    main()
