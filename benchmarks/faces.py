r"""Certified faces and clothes: fresh trainings of any method for each data set and ε, judged by a protocol's CNN.

    python benchmarks/faces.py --data gender=TRAIN.parquet,TEST.parquet:male \
        --data hair=TRAIN.parquet,TEST.parquet:hair \
        --task "dpaf gender 10" --task "dpaf hair 1" --trainings 3 --together 8 --out OUT
    python benchmarks/faces.py --data digits=DIR --task "dpaf digits 10 iterations=1000" --protocol sinkhorn --out OUT
    python benchmarks/faces.py --data digits=drawn:5000 --task "dpaf digits 10 gradient_share=0.5" --out OUT

A --task is a method, a data set, an ε (0: none, for a variant that needs the raw records) and settings of the method;
``real`` in place of a method measures the ceiling, a classifier trained on the real training set. Every training is
fresh: no seed, another noise each time. Beside the accuracy of the protocol's CNN on the real test set stand the
largest class's share of it and how often a classifier that was trained on real images agrees with the label a synthetic
image was drawn for. OUT gets results.json, which grows with every training, results.md and one grid of pictures for
each task. All of it is computed from real data and is NOT private.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.data import PrivateImages, PublicImages
from sfumato.data.digits import draw_digits
from sfumato.evaluation.classifiers import Learned, learn, score
from sfumato.evaluation.measurement import NOTICE
from sfumato.evaluation.protocols import protocol_named
from sfumato.methods import find
from sfumato.privacy import Budget, NoGuarantee
from sfumato.release.grid import grid

DELTA = 1e-5


@dataclass(frozen=True)
class Task:
    """One training and what becomes of it."""

    text: str
    source: str
    number: int
    images: int
    protocol: str
    size: int | None
    agreement: bool
    device: str
    out: str
    deadline: float


def collection(source: str, size: int | None) -> tuple[PublicImages, PublicImages]:
    """Train and test split of ``DIR`` or ``TRAIN,TEST``, ``:column`` naming the label of a table; or drawn."""
    paths, _, label = source.partition(":")
    if paths == "drawn":
        sets = (draw_digits(int(label), seed=seed) for seed in (0, 1))
        train_set, test_set = (PublicImages(one.pixels, one.labels, one.classes) for one in sets)
        return train_set, test_set
    train, _, test = paths.partition(",")
    options: dict[str, Any] = {"size": size, "unlabelled": "leave out", **({"label_column": label} if label else {})}
    return PublicImages.read(train, split="train", **options), PublicImages.read(test or train, split="test", **options)


def judge(task: Task) -> dict[str, Any] | None:
    if time.time() > task.deadline:
        return None
    torch.set_num_threads(1)
    name, data, epsilon, *settings = task.text.split()
    train, test = collection(task.source, task.size)
    classes, protocol = len(train.classes), protocol_named(task.protocol)
    recipe = next(recipe for recipe in protocol.recipes if recipe.name == protocol.judge)

    def taught(pixels: np.ndarray, labels: np.ndarray) -> Learned:
        return learn(recipe, pixels, labels, classes=classes, seed=task.number, device=task.device)

    found: dict[str, Any] = {"task": task.text, "data": data, "number": task.number, "epsilon": None, "seconds": 0.0}
    found["majority"] = 100 * float(np.bincount(test.labels).max() / len(test.labels))
    if name == "real":
        pixels, labels = train.pixels, train.labels
    else:
        method = find(name).configured(dict(text.split("=", 1) for text in settings))
        private = PrivateImages.from_arrays(train.pixels, train.labels, classes=train.classes)
        start = time.perf_counter()
        raw = method.variant in method.raw_variants
        release = method.fit(private, NoGuarantee() if raw else Budget(float(epsilon), DELTA), device=task.device)
        found |= {"seconds": time.perf_counter() - start, "epsilon": release.card["epsilon"]}
        found |= {"guarantee": release.card["guarantee"], "parameters": release.card["parameters"]}
        pixels, labels = release.sample(task.images, batch=2000, device=task.device)
        if task.number == 0:
            shown, _ = release.sample(10 * classes, labels=np.repeat(np.arange(classes), 10), device=task.device)
            plain = "".join(c if c.isalnum() or c == "." else "-" for c in task.text)
            grid(shown, columns=10, scale=1).save(Path(task.out) / f"{plain[:120]}.png")
    accuracy = score(taught(pixels, labels), test.pixels, test.labels, classes=classes)
    found |= {"accuracy": 100 * accuracy.overall, "per class": accuracy.per_class}
    if task.agreement and name != "real" and task.number == 0:
        real = taught(train.pixels, train.labels)
        found["agreement"] = 100 * float((real.predict(pixels) == labels).mean())
    return found


def table(results: list[dict[str, Any]]) -> str:
    """A line for each task: mean ± standard deviation over its trainings."""
    lines = ["| task | trainings | accuracy | majority | agreement | seconds |", "|---|---|---|---|---|---|"]
    for text in sorted({r["task"] for r in results}):
        own = [r for r in results if r["task"] == text]
        agreement = [r["agreement"] for r in own if "agreement" in r]
        cells = [text, str(len(own)), spread([r["accuracy"] for r in own]), f"{own[0]['majority']:.1f}"]
        cells += [spread(agreement) if agreement else "–", spread([r["seconds"] for r in own])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", action="append", required=True, help="name=DIR or name=TRAIN,TEST[:label column]")
    parser.add_argument("--task", action="append", required=True, help="'method data ε [key=value ...]'")
    parser.add_argument("--trainings", type=int, default=3)
    parser.add_argument("--protocol", default="dppm")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--size", type=int, help="pixels a side")
    parser.add_argument(
        "--agreement", action="store_true", help="ask a classifier of real images about the first training"
    )
    parser.add_argument("--together", type=int, default=1, help="trainings that share the device")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no training after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sources = dict(text.split("=", 1) for text in options.data)
    tasks = [
        Task(
            text=text,
            source=sources[text.split()[1]],
            number=number,
            images=options.images,
            protocol=options.protocol,
            size=options.size,
            agreement=options.agreement,
            device=options.device,
            out=str(options.out),
            deadline=time.time() + 60 * options.minutes,
        )
        for number in range(options.trainings)
        for text in options.task
    ]
    results: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.together, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(judge, task) for task in tasks]):
            try:
                found = done.result()
            except Exception as error:
                print("failed:", type(error).__name__, error, flush=True)
                continue
            if found is None:
                continue
            results.append(found)
            line = {key: found[key] for key in ("accuracy", "agreement", "seconds") if key in found}
            print(found["task"], found["number"], json.dumps(line), flush=True)
            report = {"notice": NOTICE, "protocol": options.protocol, "images": options.images, "results": results}
            report |= {"torch": torch.__version__, "together": options.together}
            (options.out / "results.json").write_text(json.dumps(report, indent=1, ensure_ascii=False))
            (options.out / "results.md").write_text(f"{NOTICE}\n\n{table(results)}\n")
    print(table(results) if results else "no training was finished")


if __name__ == "__main__":
    main()
