"""DP-LFlow's utility: fresh trainings for each data set and ε, judged by the protocol `sinkhorn` on real test images.

    python benchmarks/dp_lflow.py --data mnist=DIR --data fashion-mnist=DIR --epsilon 1 --epsilon 10 --out results
    python benchmarks/dp_lflow.py --data mnist=DIR --epsilon 1 --trainings 1 --images 500 --set steps=2 --out tiny

DIR holds idx files. Every training is fresh: no seed, another noise each time. Its samples are judged as they come and
after smoothing and sharpening, by all three classifiers; its density by how well it tells each class of the test set
from the others. With --together several trainings share the device; before that, one training of each setting is timed
alone. Everything printed is computed from real data and is NOT private.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.data import PrivateImages, PublicImages
from sfumato.evaluation.classifiers import learn, score
from sfumato.evaluation.density import out_of_distribution_auroc
from sfumato.evaluation.measurement import NOTICE
from sfumato.evaluation.protocols import protocol_named
from sfumato.methods.dp_lflow import DPLFlow
from sfumato.privacy import Budget
from sfumato.release import Release
from sfumato.release.grid import grid

DELTA = 1e-5
SHARPNESS = {"fashion-mnist": 8.0}  # the paper's factors
DEFAULT_SHARPNESS = 5.0


@dataclass(frozen=True)
class Task:
    """One training and what becomes of it."""

    data: str
    folder: str
    epsilon: float
    number: int
    settings: dict[str, Any]
    images: int
    classifiers: tuple[str, ...]
    device: str
    out: str
    threads: int

    @property
    def name(self) -> str:
        return f"{self.data}-{self.settings.get('variant', 'certified')}-{self.epsilon:g}"


def train(task: Task) -> tuple[Release, float]:
    """A fresh training within the budget, and its seconds."""
    private = PrivateImages.read(task.folder, classes=10)
    method = DPLFlow.configured(task.settings)
    start = time.perf_counter()
    release = method.fit(private, Budget(task.epsilon, DELTA), device=task.device)
    return release, time.perf_counter() - start


def judge(task: Task) -> dict[str, Any]:
    torch.set_num_threads(task.threads)
    release, seconds = train(task)
    test = PublicImages.read(task.folder, split="test", classes=10)
    accuracy: dict[str, dict[str, float]] = {}
    sharpness = SHARPNESS.get(task.data, DEFAULT_SHARPNESS)
    for form, factor in (("as drawn", 0.0), ("sharpened", sharpness)):
        drawn = Release(replace(DPLFlow.configured(task.settings), sharpness=factor), release.model, release.card)
        pixels, labels = drawn.sample(task.images, batch=5000, device=task.device)
        if task.number == 0:
            shown, _ = drawn.sample(100, labels=np.repeat(np.arange(10), 10), device=task.device)
            picture = grid(shown, columns=10, scale=2)
            picture.save(Path(task.out) / f"{task.name}-{form.replace(' ', '-')}.png")
        accuracy[form] = {}
        for recipe in protocol_named("sinkhorn").recipes:
            if recipe.name in task.classifiers:
                learned = learn(recipe, pixels, labels, classes=10, seed=task.number, device=task.device)
                accuracy[form][recipe.name] = 100 * score(learned, test.pixels, test.labels, classes=10).overall
    density = np.nan_to_num(release.density(test.pixels, batch=5000, device=task.device), nan=-np.inf)
    own = [
        out_of_distribution_auroc(density[test.labels == label, label], density[test.labels != label, label])
        for label in range(10)
    ]
    if task.number == 0:
        release.model.cpu()
        release.save(Path(task.out) / task.name)
    card = release.card
    return {
        "data": task.data,
        "epsilon": task.epsilon,
        "card_epsilon": card["epsilon"],
        "guarantee": card["guarantee"],
        "variant": card["variant"],
        "parameters": card["parameters"],
        "noise_multiplier": card["events"][-1]["noise_multiplier"],
        "number": task.number,
        "seconds": seconds,
        "accuracy": accuracy,
        "auroc": own,
    }


def summary(results: list[dict[str, Any]], alone: dict[str, float]) -> str:
    """A table with a line for each setting: mean ± standard deviation over its trainings."""
    lines = []
    for key in sorted({(r["data"], r["epsilon"], r["variant"]) for r in results}):
        own = [r for r in results if (r["data"], r["epsilon"], r["variant"]) == key]
        lines.append(f"{key[0]}, ε {key[1]:g}, {key[2]}: {len(own)} trainings")
        for form in ("as drawn", "sharpened"):
            names = own[0]["accuracy"][form]
            cells = [f"{name} {spread([r['accuracy'][form][name] for r in own])}" for name in names]
            lines.append(f"  {form}: {', '.join(cells)}")
        auroc = [statistics.fmean(r["auroc"]) for r in own]
        by_class = " ".join(f"{statistics.fmean(r['auroc'][label] for r in own):.2f}" for label in range(10))
        seconds = alone.get(f"{key[0]} {key[1]:g} {key[2]}")
        lines.append(f"  AUROC {statistics.fmean(auroc):.3f} by class {by_class}")
        lines.append(f"  seconds alone {'not measured' if seconds is None else f'{seconds:.1f}'}")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True, help="name=folder with idx files")
    parser.add_argument("--epsilon", action="append", type=float, required=True)
    parser.add_argument("--variant", default="certified", help="certified, conditional or published")
    parser.add_argument("--trainings", type=int, default=5)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--set", action="append", default=[], help="a parameter of the method: steps=200")
    parser.add_argument("--classifiers", default="LR,MLP,CNN")
    parser.add_argument("--together", type=int, default=1, help="trainings that share the device")
    parser.add_argument("--alone", action="store_true", help="first time one training of each setting by itself")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    settings = {"variant": options.variant, **dict(text.split("=", 1) for text in options.set)}
    tasks = [
        Task(
            data=name,
            folder=folder,
            epsilon=epsilon,
            number=number,
            settings=settings,
            images=options.images,
            classifiers=tuple(options.classifiers.split(",")),
            device=options.device,
            out=str(options.out),
            threads=max(1, (os.cpu_count() or 1) // options.together),
        )
        for number in range(options.trainings)
        for epsilon in sorted(options.epsilon, reverse=True)
        for name, folder in (text.split("=", 1) for text in options.data)
    ]
    alone = {}
    for task in tasks if options.alone else []:
        if task.number == 0:
            alone[f"{task.data} {task.epsilon:g} {task.settings['variant']}"] = train(task)[1]
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.together, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(judge, task) for task in tasks]):
            results.append(done.result())
            latest = results[-1]
            print(latest["data"], latest["epsilon"], latest["number"], json.dumps(latest["accuracy"]), flush=True)
            report = {
                "notice": NOTICE,
                "protocol": "sinkhorn",
                "images": options.images,
                "machine": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor(),
                "torch": torch.__version__,
                "together": options.together,
                "seconds_alone": alone,
                "results": results,
            }
            (options.out / "results.json").write_text(json.dumps(report, indent=1, ensure_ascii=False))
    print(summary(results, alone))


if __name__ == "__main__":
    main()
