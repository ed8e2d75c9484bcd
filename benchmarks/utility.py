r"""A method's utility: fresh trainings for each data set and ε, judged by the protocol `sinkhorn` on real test images.

    python benchmarks/utility.py dp-lflow --data mnist=DIR --data fashion-mnist=DIR --epsilon 1 --epsilon 10 --out OUT
    python benchmarks/utility.py dp-lflow --data mnist=DIR --epsilon 1 --trainings 1 --images 500 --out OUT
    python benchmarks/utility.py dp-lflow --data mnist=DIR --epsilon 10 --case "" --case "steps=100 code=10" --out OUT
    python benchmarks/utility.py dp-lflow --data faces=TRAIN.parquet,TEST.parquet --label male --size 32 --epsilon 10 \
        --out OUT

DIR is anything that has the splits "train" and "test"; TRAIN,TEST names them one by one. Every training is fresh: no
seed, another noise each time. Its samples are judged by the classifiers as they come and, where a method can, after
smoothing and sharpening; its density, where it has one, by how well it tells each class of the test set from the
others. A variant that needs the raw records runs without a guarantee, whatever --epsilon says.

Each --case is one more configuration, on top of --variant and --set. With --together several trainings share the
device; with --alone one training of each setting is timed by itself before. OUT gets results.json, which grows with
every training, results.md, a grid of pictures for each setting and, with --save, its first release. --minutes stops
before the next training when time is up. All of it is computed from real data and is NOT private.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.data import PrivateImages, PublicImages
from sfumato.data.images import read
from sfumato.evaluation.classifiers import learn, score
from sfumato.evaluation.density import out_of_distribution_auroc
from sfumato.evaluation.features import extract
from sfumato.evaluation.fidelity import frechet_distance
from sfumato.evaluation.fidelity import statistics as feature_statistics
from sfumato.evaluation.inception import inception
from sfumato.evaluation.measurement import NOTICE
from sfumato.evaluation.protocols import protocol_named
from sfumato.methods import Method, find
from sfumato.privacy import Budget, NoGuarantee
from sfumato.release import Release
from sfumato.release.grid import grid
from sfumato.release.release import Density

DELTA = 1e-5
SHARPNESS = {"fashion-mnist": 8.0}  # DP-LFlow's factors
DEFAULT_SHARPNESS = 5.0


@dataclass(frozen=True)
class Task:
    """One training and what becomes of it."""

    method: str
    case: str
    settings: dict[str, Any]
    data: str
    folder: str
    label: str | None
    person: str | None
    size: int | None
    epsilon: float
    number: int
    images: int
    classifiers: tuple[str, ...]
    forms: bool
    fid: bool
    save: bool
    device: str
    out: str
    threads: int
    deadline: float

    @property
    def setting(self) -> str:
        unit = ["per person"] if self.person else []
        return ", ".join([self.data, f"ε {self.epsilon:g}", *unit, *([self.case] if self.case else [])])

    @property
    def name(self) -> str:
        return "".join(c if c.isalnum() or c in ".=-" else "-" for c in self.setting.replace("ε ", "").replace(",", ""))

    def configured(self) -> Method:
        return find(self.method).configured(self.settings)


@functools.lru_cache(maxsize=2)
def collection(
    folder: str, label: str | None, size: int | None, person: str | None = None
) -> tuple[PrivateImages, PublicImages]:
    """The training split behind the door, and the test split."""
    first, _, second = folder.partition(",")
    test = PublicImages.read(second or first, split="test", label_column=label, size=size, unlabelled="leave out")
    options: dict[str, Any] = {"label_column": label, "size": size, "unlabelled": "leave out", "classes": test.classes}
    return PrivateImages.from_images(read(first, split="train", person_column=person, **options)), test


@functools.lru_cache(maxsize=2)
def real_features(folder: str, label: str | None, size: int | None, device: str) -> Any:
    network = inception()
    test = collection(folder, label, size)[1]
    return network, feature_statistics(extract(network, test.pixels, device=device))


def train(task: Task) -> tuple[Release, float]:
    """A fresh training within the budget, and its seconds."""
    private, method = collection(task.folder, task.label, task.size, task.person)[0], task.configured()
    budget = Budget(task.epsilon, DELTA, unit="person" if task.person else "image")
    start = time.perf_counter()
    raw = method.variant in method.raw_variants
    release = method.fit(private, NoGuarantee() if raw else budget, device=task.device)
    return release, time.perf_counter() - start


def timed(task: Task) -> float:
    torch.set_num_threads(task.threads)
    return train(task)[1]


def judge(task: Task) -> dict[str, Any] | None:
    if time.time() > task.deadline:
        return None
    torch.set_num_threads(task.threads)
    release, seconds = train(task)
    test = collection(task.folder, task.label, task.size, task.person)[1]
    method, classes = task.configured(), len(test.classes)
    forms = {"as drawn": method}
    if task.forms and "sharpness" in {field.name for field in fields(method)}:
        sharpness: dict[str, Any] = {"sharpness": SHARPNESS.get(task.data, DEFAULT_SHARPNESS)}
        forms["sharpened"] = replace(method, **sharpness)
    accuracy: dict[str, dict[str, float]] = {}
    fid = {}
    for form, sampler in forms.items():
        drawn = Release(sampler, release.model, release.card)
        pixels, labels = drawn.sample(task.images, batch=5000, device=task.device)
        if task.number == 0:
            shown, _ = drawn.sample(10 * classes, labels=np.repeat(np.arange(classes), 10), device=task.device)
            ending = "" if form == "as drawn" else f"-{form}"
            grid(shown, columns=10, scale=2).save(Path(task.out) / f"{task.name}{ending}.png")
        accuracy[form] = {}
        for recipe in protocol_named("sinkhorn").recipes:
            if recipe.name in task.classifiers:
                learned = learn(recipe, pixels, labels, classes=classes, seed=task.number, device=task.device)
                accuracy[form][recipe.name] = 100 * score(learned, test.pixels, test.labels, classes=classes).overall
        if task.fid:
            network, real = real_features(task.folder, task.label, task.size, task.device)
            own = extract(network, pixels[: len(test.pixels)], device=task.device)
            fid[form] = frechet_distance(real, feature_statistics(own))
    auroc = None
    if isinstance(method, Density):
        density = np.nan_to_num(release.density(test.pixels, batch=5000, device=task.device), nan=-np.inf)
        auroc = [
            out_of_distribution_auroc(density[test.labels == label, label], density[test.labels != label, label])
            for label in range(classes)
        ]
    if task.save and task.number == 0:
        release.model.cpu()
        release.save(Path(task.out) / task.name)
    card = release.card
    return {
        "setting": task.setting,
        "data": task.data,
        "epsilon": task.epsilon,
        "case": task.case,
        "card_epsilon": card["epsilon"],
        "guarantee": card["guarantee"],
        "variant": card["variant"],
        "parameters": card["parameters"],
        "noise_multiplier": next((e["noise_multiplier"] for e in reversed(card["events"]) if "blocks" in e), None),
        "number": task.number,
        "seconds": seconds,
        "accuracy": accuracy,
        "fid": fid,
        "auroc": auroc,
    }


def table(results: list[dict[str, Any]], alone: dict[str, float]) -> str:
    """A line for each setting and form: mean ± standard deviation over its trainings."""
    names = list(next(iter(results[0]["accuracy"].values())))
    heads = ["setting", "guarantee", "form", "trainings", *names, "FID", "AUROC", "seconds", "seconds alone"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for setting in sorted({r["setting"] for r in results}):
        own = [r for r in results if r["setting"] == setting]
        promise = own[0]["guarantee"]
        for form in own[0]["accuracy"]:
            cells = [spread([r["accuracy"][form][name] for r in own]) for name in names]
            fid = spread([r["fid"][form] for r in own], 1) if own[0]["fid"] else "–"
            auroc = spread([statistics.fmean(r["auroc"]) for r in own], 3) if own[0]["auroc"] else "–"
            seconds = [spread([r["seconds"] for r in own], 1), f"{alone[setting]:.1f}" if setting in alone else "–"]
            row = [setting, promise, form, str(len(own)), *cells, fid, auroc, *seconds]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def spread(values: list[float], digits: int = 2) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def tasks_of(options: argparse.Namespace) -> list[Task]:
    """All trainings, the first of every setting before the second of any."""
    common = {"variant": options.variant, **dict(text.split("=", 1) for text in options.set)}
    return [
        Task(
            method=options.method,
            case=case,
            settings={**common, **dict(text.split("=", 1) for text in case.split())},
            data=name,
            folder=folder,
            label=options.label,
            person=options.person,
            size=options.size,
            epsilon=epsilon,
            number=number,
            images=options.images,
            classifiers=tuple(options.classifiers.split(",")),
            forms=not options.as_drawn,
            fid=options.fid,
            save=options.save,
            device=options.device,
            out=str(options.out),
            threads=max(1, (os.cpu_count() or 1) // options.together),
            deadline=time.time() + 60 * options.minutes,
        )
        for number in range(options.trainings)
        for case in options.case or [""]
        for epsilon in sorted(options.epsilon, reverse=True)
        for name, folder in (text.split("=", 1) for text in options.data)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", help="a registered method, such as dp-lflow")
    parser.add_argument("--data", action="append", required=True, help="name=DIR or name=TRAIN,TEST")
    parser.add_argument("--label", help="the label column of a table")
    parser.add_argument("--person", help="the column that names persons: the guarantee is then for one person")
    parser.add_argument("--size", type=int, help="pixels a side; images are cropped to a square and resized")
    parser.add_argument("--epsilon", action="append", type=float, required=True)
    parser.add_argument("--variant", default="certified")
    parser.add_argument("--set", action="append", default=[], help="a parameter of the method: steps=200")
    parser.add_argument("--case", action="append", help="one more configuration: 'steps=100 variant=conditional'")
    parser.add_argument("--trainings", type=int, default=5)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--classifiers", default="LR,MLP,CNN")
    parser.add_argument("--as-drawn", action="store_true", help="do not judge sharpened images as well")
    parser.add_argument("--fid", action="store_true", help="against the test split; needs the Inception weights")
    parser.add_argument("--together", type=int, default=1, help="trainings that share the device")
    parser.add_argument("--alone", action="store_true", help="first time one training of each setting by itself")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no training after so many")
    parser.add_argument("--save", action="store_true", help="keep the first release of each setting")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tasks = tasks_of(options)
    for task in tasks:
        task.configured()  # a misspelt setting shows before the first training, not after
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.together, mp_context=get_context("spawn")) as pool:
        first = [task for task in tasks if task.number == 0] if options.alone else []
        alone = {task.setting: pool.submit(timed, task).result() for task in first}
        for done in as_completed([pool.submit(judge, task) for task in tasks]):
            found = done.result()
            if found is None:
                continue
            results.append(found)
            seconds = f"{found['seconds']:.1f} s"
            print(found["setting"], found["number"], seconds, json.dumps(found["accuracy"]), flush=True)
            report = {
                "notice": NOTICE,
                "method": options.method,
                "protocol": "sinkhorn",
                "images": options.images,
                "machine": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor(),
                "torch": torch.__version__,
                "together": options.together,
                "seconds_alone": alone,
                "results": results,
            }
            (options.out / "results.json").write_text(json.dumps(report, indent=1, ensure_ascii=False))
            (options.out / "results.md").write_text(f"{NOTICE}\n\n{table(results, alone)}\n")
    print(table(results, alone) if results else "no training was finished")


if __name__ == "__main__":
    main()
