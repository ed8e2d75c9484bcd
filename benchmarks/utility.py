r"""What the methods' images are worth: fresh trainings, judged by a published protocol on real test images.

    python benchmarks/utility.py benchmarks/experiments.toml --data FOLDER --only dp-lflow --together 8 --out OUT
    python benchmarks/utility.py benchmarks/experiments.toml --data FOLDER --trainings 1 --images 500 --records 1000 \
        --set steps=3 --out OUT

The first file says what is trained: a table for each experiment, with a method (or "real", the ceiling: a classifier
of real images), collections, budgets and cases. FOLDER holds the collections as ``sfumato reproduce`` finds them
(mnist, fashion-mnist, celeba); "digits" are drawn and need no file.

Every training is fresh: no seed, another noise each time. Its samples are judged by the protocol's classifiers as they
come and, where asked for, after smoothing and sharpening; its density, where it has one, by how well it tells each
class of the test set from the others. A variant that needs the raw records runs without a guarantee, whatever its ε.

All experiments share one pool of processes, and with --together several trainings share the device. OUT gets a folder
for each experiment: results.json, which grows with every training, results.md, a grid of pictures for each setting and,
with --save, its first release. --minutes begins no training after that time. All of it is computed from real data and
is NOT private.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# Batches of coins differ in size; without this the pieces of memory they leave do not fit the next one.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import numpy as np
import torch

from sfumato.data import Images, PrivateImages
from sfumato.data.digits import draw_digits
from sfumato.data.images import read
from sfumato.evaluation.cache import cached_statistics, default_folder
from sfumato.evaluation.classifiers import Recipe, TrainedClassifier, learn, score
from sfumato.evaluation.density import out_of_distribution_auroc
from sfumato.evaluation.features import FeatureNetwork, extract
from sfumato.evaluation.fidelity import frechet_distance
from sfumato.evaluation.fidelity import statistics as feature_statistics
from sfumato.evaluation.inception import inception
from sfumato.evaluation.protocols import protocol_named
from sfumato.evaluation.results import NOTICE
from sfumato.experiments.papers.collection import DatasetLocator
from sfumato.experiments.processes import stay_with_parent
from sfumato.methods import Method, find
from sfumato.privacy import Budget, NoGuarantee, SubsampledGaussian
from sfumato.release import Release
from sfumato.release.image_grid import grid
from sfumato.release.release import Density

DELTA = 1e-5
REAL = "real"
SHARPNESS = {"mnist": 5.0, "fashion-mnist": 8.0, "celeba-gender-32": 2.0}  # DP-LFlow's factors


@dataclass(frozen=True)
class Experiment:
    """A table of the file. ``fid``, ``sharpened`` and ``agreement`` say for how many trainings of each setting that is
    measured: how far its images are from the protocol's reference, what sharpening does to them, and how often a
    classifier of real images agrees with the label an image was drawn for."""

    name: str
    method: str
    data: tuple[str, ...]
    epsilon: tuple[float, ...] = (0.0,)
    trainings: int = 1
    parameters: dict[str, Any] = field(default_factory=dict)
    cases: tuple[dict[str, Any], ...] = ({},)
    protocols: tuple[str, ...] = ("sinkhorn",)
    classifiers: tuple[str, ...] = ()
    images: int | None = None
    records: int | None = None
    person: str | None = None
    fid: int = 0
    sharpened: int = 0
    agreement: int = 0

    def count(self, protocol: str) -> int:
        """Synthetic images that a protocol's classifiers learn from."""
        return self.images or protocol_named(protocol).synthetic_count


@dataclass(frozen=True)
class Task:
    """One training and what becomes of it."""

    experiment: Experiment
    case: dict[str, Any]
    data: str
    epsilon: float
    number: int
    folder: str
    save: bool
    device: str
    out: Path
    threads: int
    deadline: float

    @property
    def setting(self) -> str:
        unit = ["per person"] if self.experiment.person else []
        case = " ".join(f"{key}={value}" for key, value in self.case.items())
        return ", ".join([self.data, f"ε {self.epsilon:g}", *unit, *([case] if case else [])])

    @property
    def name(self) -> str:
        letters = self.setting.replace("ε ", "").replace(",", "")
        return "".join(c if c.isalnum() or c in ".=-" else "-" for c in letters)[:120]

    def method(self) -> Method:
        return find(self.experiment.method).configured({**self.experiment.parameters, **self.case})

    def sets(self) -> tuple[Images, Images]:
        return collection(self.folder, self.data, self.experiment.person, self.experiment.records)


@functools.lru_cache(maxsize=4)
def collection(folder: str, name: str, person: str | None, records: int | None) -> tuple[Images, Images]:
    """Training and test images, of the first so many records."""
    if name == "digits":
        return draw_digits(records or 60_000, seed=0), draw_digits(10_000, seed=1)
    found = DatasetLocator.of([folder]).find(name)
    if found is None:
        raise FileNotFoundError(f"the collection {name!r} is not in the data folder")
    options = dict(found.collection.options)
    if isinstance(options.get("classes"), list):
        options["classes"] = tuple(options["classes"])
    train = read(found.train, split="train", person_column=person, **options)
    test = read(found.test or found.train, split="train" if found.test else "test", **options)
    persons = None if train.persons is None else train.persons[:records]
    return Images(train.pixels[:records], train.labels[:records], train.classes, persons), test


@functools.cache
def network() -> FeatureNetwork:
    return inception()


@functools.lru_cache(maxsize=4)
def judge_of_real(folder: str, name: str, recipe: Recipe, device: str) -> TrainedClassifier:
    train, _ = collection(folder, name, None, None)
    return learn(recipe, train.pixels, train.labels, classes=len(train.classes), seed=0, device=device)


def work(task: Task) -> dict[str, Any] | None:
    """Train and judge, unless time is up."""
    if time.time() > task.deadline:
        return None
    torch.set_num_threads(task.threads)
    if "cuda" in task.device:
        torch.cuda.empty_cache()  # what the training before has left belongs to whoever needs it now
    found = {"setting": task.setting, "data": task.data, "epsilon": task.epsilon, "number": task.number}
    if task.experiment.method == REAL:
        train, _ = task.sets()
        measured = {name: judged(task, name, train.pixels, train.labels) for name in task.experiment.protocols}
        return {**found, "seconds": 0.0, "judged": by_form({"real": measured})}
    release, seconds = trained(task)
    method, card = task.method(), release.card
    forms: dict[str, dict[str, Any]] = {"as drawn": {}}
    if task.number < task.experiment.sharpened and "sharpness" in {one.name for one in fields(method)}:
        forms["sharpened"] = {"sharpness": SHARPNESS.get(task.data, 5.0)}
    count = max(task.experiment.count(name) for name in task.experiment.protocols)
    looks, drawing = {}, {}
    for form, change in forms.items():
        drawn = release.with_parameters(change)
        start = time.perf_counter()
        pixels, labels = drawn.sample(count, batch=5000, device=task.device)
        drawing[form] = time.perf_counter() - start
        if task.number == 0:
            show(task, drawn, "" if form == "as drawn" else f"-{form}")
        looks[form] = {name: judged(task, name, pixels, labels) for name in task.experiment.protocols}
    if task.save and task.number == 0:
        release.model.cpu()
        release.save(task.out / task.name)
    return {
        **found,
        "case": task.case,
        "card_epsilon": card.epsilon,
        "guarantee": card.guarantee,
        "variant": card.variant,
        "parameters": card.parameters,
        "noise_multiplier": next(
            (e.noise_multiplier for e in reversed(card.events) if isinstance(e, SubsampledGaussian)), None
        ),
        "seconds": seconds,
        "drawing_seconds": drawing["as drawn"],
        "auroc": auroc(task, release),
        "judged": by_form(looks),
    }


def by_form(looks: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """From form → protocol → measure to protocol → measure → form, as results.json has it."""
    turned: dict[str, dict[str, dict[str, Any]]] = {}
    for form, protocols in looks.items():
        for protocol, measures in protocols.items():
            for measure, value in measures.items():
                turned.setdefault(protocol, {}).setdefault(measure, {})[form] = value
    return turned


def trained(task: Task) -> tuple[Release, float]:
    """A fresh training within the budget, and its seconds."""
    images, _ = task.sets()
    private, method = PrivateImages.from_images(images), task.method()
    raw = method.variant in method.raw_variants
    budget = Budget(task.epsilon, DELTA, unit="person" if task.experiment.person else "image") if not raw else None
    start = time.perf_counter()
    release = method.fit(private, budget or NoGuarantee(), device=task.device)
    if "cuda" in task.device:
        torch.cuda.synchronize()
    return release, time.perf_counter() - start


def show(task: Task, release: Release, ending: str) -> None:
    classes = len(release.classes)
    shown, _ = release.sample(10 * classes, labels=np.repeat(np.arange(classes), 10), device=task.device)
    grid(shown, columns=10, scale=2 if shown.shape[-1] < 64 else 1).save(task.out / f"{task.name}{ending}.png")


def judged(task: Task, name: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Accuracy by each classifier of a protocol; FID and agreement where they are asked for."""
    experiment, (train, test) = task.experiment, task.sets()
    protocol, classes = protocol_named(name), len(test.classes)
    if experiment.method != REAL:
        pixels, labels = pixels[: experiment.count(name)], labels[: experiment.count(name)]
    found: dict[str, Any] = {"accuracy": {}}
    for recipe in protocol.recipes:
        if experiment.classifiers and recipe.name not in experiment.classifiers:
            continue
        learned = learn(recipe, pixels, labels, classes=classes, seed=task.number, device=task.device)
        accuracy = score(learned, test.pixels, test.labels, classes=classes)
        found["accuracy"][recipe.name] = 100 * accuracy.overall
        if recipe.name == protocol.judge:
            found["per_class"] = [None if share is None else 100 * share for share in accuracy.per_class]
    if task.number < experiment.fid:
        reference = (test if protocol.reference == "test" else train).pixels[:10_000]
        real = cached_statistics(network(), reference, folder=default_folder(), device=task.device)
        own = extract(network(), pixels[: len(reference)], device=task.device)
        found["fid"] = frechet_distance(real, feature_statistics(own))
    if task.number < experiment.agreement:
        recipe = next(recipe for recipe in protocol.recipes if recipe.name == protocol.judge)
        answers = judge_of_real(task.folder, task.data, recipe, task.device).predict(pixels)
        found["agreement"] = 100 * float((answers == labels).mean())
    return found


def auroc(task: Task, release: Release) -> list[float] | None:
    if not isinstance(release.method, Density):
        return None
    _, test = task.sets()
    density = np.nan_to_num(release.density(test.pixels, batch=5000, device=task.device), nan=-np.inf)
    own = ((density[:, label], test.labels == label) for label in range(len(test.classes)))
    return [out_of_distribution_auroc(values[inside], values[~inside]) for values, inside in own]


# The file and the table


def experiments_of(options: argparse.Namespace) -> list[Experiment]:
    """The chosen tables of the file, with what the command line changes in all of them."""
    tables = tomllib.loads(options.file.read_text())
    unknown = sorted(set(options.only) - set(tables))
    if unknown:
        raise SystemExit(f"--only {', '.join(unknown)}: the file has {', '.join(tables)}")
    found = []
    for name in options.only or tables:
        table = dict(tables[name])
        common = {**table.pop("parameters", {}), **dict(text.split("=", 1) for text in options.set)}
        lists = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
        given = {"trainings": options.trainings, "images": options.images, "records": options.records}
        given = {key: value for key, value in given.items() if value is not None}
        found.append(Experiment(name=name, parameters=common, **{**lists, **given}))
    return found


def tasks_of(options: argparse.Namespace) -> Iterator[Task]:
    """All trainings, the first of every setting before the second of any."""
    experiments = experiments_of(options)
    for number in range(max(experiment.trainings for experiment in experiments)):
        for one in experiments:
            settings = ((case, epsilon, name) for case in one.cases for epsilon in one.epsilon for name in one.data)
            for case, epsilon, name in settings if number < one.trainings else ():
                yield Task(
                    experiment=one,
                    case=case,
                    data=name,
                    epsilon=epsilon,
                    number=number,
                    folder=options.data,
                    save=options.save,
                    device=options.device,
                    out=options.out / one.name,
                    threads=max(1, (os.cpu_count() or 1) // options.together),
                    deadline=time.time() + 60 * options.minutes,
                )


def table(results: list[dict[str, Any]]) -> str:
    """A line for each setting and form: mean ± standard deviation over its trainings."""
    names = list(next(iter(results[0]["accuracy"].values())))
    heads = [
        "setting",
        "guarantee",
        "form",
        "trainings",
        *names,
        "FID",
        "agreement",
        "AUROC",
        "training s",
        "drawing s",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for setting in sorted({r["setting"] for r in results}):
        own = [r for r in results if r["setting"] == setting]
        for form in dict.fromkeys(form for r in own for form in r["accuracy"]):
            shown = [r for r in own if form in r["accuracy"]]
            cells = [spread([r["accuracy"][form][name] for r in shown]) for name in names]
            cells += [
                spread([r[key][form] for r in shown if form in r.get(key, {})], 1) for key in ("fid", "agreement")
            ]
            cells += [spread([statistics.fmean(r["auroc"]) for r in shown if r.get("auroc")], 3)]
            cells += [spread([r[key] for r in own if key in r], 1) for key in ("seconds", "drawing_seconds")]
            lines.append(
                "| " + " | ".join([setting, own[0].get("guarantee", "–"), form, str(len(shown)), *cells]) + " |"
            )
    return "\n".join(lines)


def spread(values: list[float], digits: int = 2) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}" if values else "–"


def keep(task: Task, results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """A file for each protocol, whole again after every training."""
    for protocol in task.experiment.protocols:
        ending = "" if protocol == task.experiment.protocols[0] else f"-{protocol}"
        own = [{key: r[key] for key in r if key != "judged"} | r["judged"][protocol] for r in results]
        report = {
            "notice": NOTICE,
            "experiment": task.experiment.name,
            "method": task.experiment.method,
            "protocol": protocol,
            "images": task.experiment.count(protocol),
            "records": task.experiment.records,
            "machine": torch.cuda.get_device_name() if "cuda" in options.device else platform.processor(),
            "torch": torch.__version__,
            "together": options.together,
            "results": own,
        }
        (task.out / f"results{ending}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False))
        (task.out / f"results{ending}.md").write_text(f"{NOTICE}\n\n{table(own)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="experiments, a TOML table each")
    parser.add_argument("--data", default="data", help="the folder with the collections")
    parser.add_argument("--only", action="append", default=[], help="this experiment of the file; may be given again")
    parser.add_argument("--trainings", type=int, help="of each setting, instead of the file's number")
    parser.add_argument("--images", type=int, help="synthetic images, instead of the protocol's number")
    parser.add_argument("--records", type=int, help="train on the first so many only")
    parser.add_argument("--set", action="append", default=[], help="a parameter of all methods: steps=200")
    parser.add_argument("--together", type=int, default=1, help="trainings that share the device")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no training after so many")
    parser.add_argument("--save", action="store_true", help="keep the first release of each setting")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tasks = list(tasks_of(options))
    for task in tasks:
        task.out.mkdir(parents=True, exist_ok=True)
        if task.experiment.method != REAL:
            task.method()  # a misspelt setting shows before the first training, not after
    # Processes are copies of one that has everything imported; the device is touched by none before it is copied.
    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", "sklearn.linear_model", "torch._dynamo"])
    results: dict[str, list[dict[str, Any]]] = {}
    # Should this command be killed, no worker may go on and keep the device.
    start = {"initializer": stay_with_parent, "initargs": (tasks[0].threads,)}
    with ProcessPoolExecutor(options.together, mp_context=context, **start) as pool:
        waiting = {pool.submit(work, task): task for task in tasks}
        for done in as_completed(waiting):
            task = waiting[done]
            problem = done.exception()
            found = None if problem else done.result()
            if found is None:
                ending = f"failed: {problem!r}" if problem else "not begun"
                print(task.experiment.name, task.setting, task.number, ending, flush=True)
                continue
            own = results.setdefault(task.experiment.name, [])
            own.append(found)
            head = (task.experiment.name, found["setting"], found["number"], f"{found['seconds']:.1f} s")
            print(*head, json.dumps({name: one["accuracy"] for name, one in found["judged"].items()}), flush=True)
            keep(task, own, options)
    for path in sorted(path for name in results for path in (options.out / name).glob("results*.md")):
        print(f"\n{path.parent.name}, {path.name}\n{path.read_text()}")


if __name__ == "__main__":
    main()
