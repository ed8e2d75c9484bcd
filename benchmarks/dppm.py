"""What DPPM's samplers and its judge are worth on one trained network, and what a private step costs.

    python benchmarks/dppm.py sample --data mnist=DIR --epsilon 10 --out OUT      one training, drawn in many ways
    python benchmarks/dppm.py step --data mnist=DIR --out OUT                     private against plain step

DIR is a folder with idx files, or anything else with two splits (--splits, --label); the word "digits" stands for drawn
digits, which need no file. --set key=value changes a parameter of the method. --tiny takes a network and a collection
that a CPU can carry in a minute, to see that all of it runs.

OUT gets results.json, results.md, and a grid of pictures for each way of drawing. The noise comes from the operating
system. The pictures are judged by the CNN of the protocol `sinkhorn`, on the real test split. All of it is evaluation
on public collections: NOT PRIVATE. Accuracies of whole trainings come from benchmarks/utility.py.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# Batches of coins differ in size; without this the pieces of memory they leave do not fit the next one.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import torch

from sfumato.data.digits import draw_digits
from sfumato.data.images import Images, PrivateImages, read
from sfumato.evaluation.cache import cached_statistics, default_folder
from sfumato.evaluation.classifiers import CNN, Recipe, learn, score
from sfumato.evaluation.features import extract
from sfumato.evaluation.fidelity import frechet_distance, statistics
from sfumato.evaluation.inception import inception
from sfumato.methods.dppm import DPPM
from sfumato.methods.parts.label_filter import FilteredGenerator
from sfumato.networks.score import ScoreNetwork
from sfumato.privacy import Budget
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.privacy.randomness import Randomness
from sfumato.release import Release
from sfumato.release.image_grid import grid

SAMPLERS: tuple[dict[str, Any], ...] = (
    {},
    {"max_rejections": 0},
    {"sampler": "heun", "sampling_steps": 9},
    {"sampler": "heun", "sampling_steps": 36},
    {"sampler": "hamiltonian", "sampling_steps": 20},
    {"sampler": "hamiltonian", "sampling_steps": 40},
    {"sampler": "hamiltonian", "sampling_steps": 20, "metropolis": False},
    {"sampler": "hamiltonian", "sampling_steps": 20, "rho": -2.0},
    {"sampler": "hamiltonian", "sampling_steps": 20, "momentum_distribution": "rayleigh"},
    {"sampler": "hamiltonian", "sampling_steps": 20, "momentum_distribution": "uniform"},
    {"sigma_min": 0.1},
    {"sigma_min": 0.2},
    {"sigma_min": 0.4},
    {"sigma_max": 40.0},
)

TINY = {
    "width": 8,
    "sampling_rate": 0.1,
    "steps": 10,
    "filter_steps": 10,
    "draws": 1,
    "sampling_steps": 4,
    "iterations": 5,
    "batch_size": 16,
}


@dataclass(frozen=True)
class Task:
    """One training, and the ways in which its pictures are drawn."""

    mode: str
    data: str
    folder: str
    label: str | None
    splits: tuple[str, str]
    epsilon: float
    number: int
    settings: dict[str, Any]
    images: int
    batch: int
    records: int | None
    tiny: bool
    device: str
    out: str

    def collection(self) -> tuple[Images, Images]:
        records = self.records or (400 if self.tiny else None)
        if self.folder == "digits":
            return draw_digits(records or 60_000, seed=0), draw_digits(max(200, (records or 60_000) // 6), seed=1)
        train, test = (
            read(self.folder, split=name, infer_classes=True, label_column=self.label, unlabelled="leave out")
            for name in self.splits
        )
        return (
            train if records is None else Images(train.pixels[:records], train.labels[:records], train.classes)
        ), test

    def name(self) -> str:
        return f"{self.mode}-{self.data}-{self.epsilon:g}-{self.number}"


def judge(task: Task) -> list[dict[str, Any]]:
    """Train, draw, judge."""
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("high")
    train, test = task.collection()
    private, method, budget = (
        PrivateImages.from_images(train),
        DPPM.configured(task.settings),
        Budget(task.epsilon, 1e-5),
    )
    method.plan(budget)  # seconds of its own, on one core, and remembered
    start = time.perf_counter()
    release = method.fit(private, budget, device=task.device)
    synchronise(task.device)
    seconds = time.perf_counter() - start
    about = {
        "mode": task.mode,
        "data": task.data,
        "epsilon": task.epsilon,
        "guarantee": release.card.guarantee,
        "number": task.number,
        "settings": task.settings,
        "parameters": sum(p.numel() for p in release.model.parameters()),
        "noise": {event.name: event.noise_multiplier for event in method.plan(budget).events},
        "records": len(train.pixels),
        "training_seconds": seconds,
    }
    if isinstance(release.model, FilteredGenerator):
        about["judge"] = 100 * _right(release, test, task.device)
    return [{**about, **_drawn(task, method, release, change, test)} for change in SAMPLERS]


def _right(release: Release, test: Images, device: str) -> float:
    """How often the private judge is right about real images."""
    network = release.model.judge.to(device)
    with torch.no_grad():
        parts = torch.as_tensor(test.pixels).split(2000)
        found = torch.cat([network(part.to(device).float() / 255).argmax(1).cpu() for part in parts])
    return float((found.numpy() == test.labels).mean())


def _drawn(task: Task, method: DPPM, release: Release, change: dict[str, Any], test: Images) -> dict[str, Any]:
    release.method, classes = replace(method, **change), len(release.classes)
    start = time.perf_counter()
    images, labels = release.sample(task.images, batch=task.batch, device=task.device)
    seconds = time.perf_counter() - start
    recipe = Recipe("CNN", CNN.network, epochs=2) if task.tiny else CNN
    learned = learn(recipe, images, labels, classes=classes, seed=task.number, device=task.device)
    accuracy = score(learned, test.pixels, test.labels, classes=classes)
    fid = None
    if not task.tiny:
        real = cached_statistics(inception(), test.pixels[:10_000], folder=default_folder(), device=task.device)
        fid = frechet_distance(real, statistics(extract(inception(), images[:10_000], device=task.device)))
    if task.number == 0:
        rows = [np.flatnonzero(labels == label)[: 100 // classes] for label in range(classes)]
        grid(images[np.concatenate(rows)], columns=10).save(
            Path(task.out) / f"{task.name()}-{SAMPLERS.index(change)}.png"
        )
    return {
        "change": change,
        "images": task.images,
        "sampling_seconds": seconds,
        "accuracy": 100 * accuracy.overall,
        "fid": fid,
        "classes": [100 * (share or 0.0) for share in accuracy.per_class],
    }


def step(task: Task) -> list[dict[str, Any]]:
    """The same rows, the same loss: a clipped sum, and a plain backward pass, in turn."""
    torch.set_float32_matmul_precision("high")
    method, device = DPPM.configured(task.settings), torch.device(task.device)
    train, _ = task.collection()
    units = 24 if task.tiny else round(method.sampling_rate * len(train.pixels))
    shape: tuple[int, int, int] = train.pixels.shape[1:]
    model = method.build(shape, len(train.classes)).to(device).generator
    if not isinstance(model, ScoreNetwork):
        raise SystemExit("the private step is that of the certified variant")
    ids = torch.arange(units * method.draws, device=device) // method.draws
    draws = Randomness(0).draws(ids, torch.arange(len(ids), device=device) % method.draws, "benchmark")
    images = torch.as_tensor(train.pixels[:units]).to(device).float().div(255).repeat_interleave(method.draws, 0)
    labels = torch.as_tensor(train.labels[:units]).to(device).repeat_interleave(method.draws)
    batch = Batch(images, labels, draws, torch.full((units, method.draws), 1 / method.draws, device=device))
    seconds: dict[str, list[float]] = {"plain": [], "private": []}
    for _ in range(3 if task.tiny else 15):
        for way, times in seconds.items():
            synchronise(task.device)
            start = time.perf_counter()
            if way == "private":
                clipped_sum(model, method.loss, batch, method.clip_norm)
            else:
                method.loss(model, images, labels, draws).mean().backward()
                model.zero_grad(set_to_none=True)
            synchronise(task.device)
            times.append(time.perf_counter() - start)
    # The first rounds choose algorithms.
    plain, private = (float(np.median(times[len(times) // 3 :])) for times in seconds.values())
    entry = {"mode": "step", "units": units, "draws": method.draws, "plain_ms": 1000 * plain}
    return [{**entry, "private_ms": 1000 * private, "ratio": private / plain, "rows_per_second": len(ids) / private}]


def synchronise(device: str) -> None:
    if "cuda" in device:
        torch.cuda.synchronize()


def table(results: Iterable[dict[str, Any]]) -> str:
    """Everything that was drawn and judged, in the order it was finished."""
    lines = ["| data | mode | ε | change | training s | sampling s | judge % | CNN % | FID |", "|" + "---|" * 9]
    for entry in results:
        if "accuracy" not in entry:
            continue
        change = ", ".join(f"{key} {value}" for key, value in entry["change"].items()) or "–"
        right = f"{entry['judge']:.1f}" if "judge" in entry else "–"
        seconds = f"{entry['training_seconds']:.0f} | {entry['sampling_seconds']:.1f}"
        about = f"{entry['data']} | {entry['mode']} | {entry['epsilon']:g} | {change}"
        lines.append(f"| {about} | {seconds} | {right} | {entry['accuracy']:.1f} | {entry['fid'] or 0:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("sample", "step"))
    parser.add_argument("--data", action="append", required=True, help="name=folder, or digits=digits")
    parser.add_argument("--label", default=None, help="parquet: the label's column")
    parser.add_argument("--splits", nargs=2, default=("train", "test"), help="names of the two splits")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--images", type=int, default=None, help="synthetic images that are drawn and judged")
    parser.add_argument("--records", type=int, default=None, help="train on the first so many, or draw so many digits")
    parser.add_argument("--batch", type=int, default=10_000, help="images drawn at once")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--together", type=int, default=1, help="trainings that share the device")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    machine = torch.cuda.get_device_name() if "cuda" in options.device else "CPU"
    tasks = [
        Task(
            mode=options.mode,
            data=name,
            folder=folder,
            label=options.label,
            splits=tuple(options.splits),
            epsilon=epsilon,
            number=number,
            settings={**(TINY if options.tiny else {}), **dict(text.split("=", 1) for text in options.set)},
            images=options.images or (300 if options.tiny else 60_000),
            batch=options.batch,
            records=options.records,
            tiny=options.tiny,
            device=options.device,
            out=str(options.out),
        )
        for number in range(options.seeds)
        for epsilon in options.epsilon or [10.0]
        for name, folder in (text.split("=", 1) for text in options.data)
    ]
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.together, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(step if options.mode == "step" else judge, task) for task in tasks}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for entry in (entry for future in done for entry in future.result()):
                results.append({"machine": machine, "torch": torch.__version__, "together": options.together, **entry})
                print(json.dumps(results[-1]), flush=True)
            (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
            (options.out / "results.md").write_text(table(results))


if __name__ == "__main__":
    main()
