"""The list of all entries: what each needs, what it costs on this machine, and whether it can be run on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sfumato.experiments.datasets import Dataset, DatasetLocator, datasets
from sfumato.experiments.papers.entries import SCALES, Case, Entry, Paper, Scale, Setting, papers
from sfumato.methods import METHODS, Method
from sfumato.planning.costs import costs, training_seconds


@dataclass(frozen=True)
class Item:
    """One line of the list."""

    paper: str
    entry: str
    title: str
    data: list[str]
    methods: list[str]
    trainings: int
    seconds: dict[str, float]
    """By scale, trainings and evaluations together."""
    measured: bool
    """Whether the seconds of the small scale were measured, on one core."""
    device: str
    status: str
    remarks: list[str]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def catalogue(locator: DatasetLocator, *, device: str | None = None) -> list[Item]:
    """All entries, in the papers' order."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return [_item(paper, entry, locator, device) for paper in papers().values() for entry in paper.entries.values()]


def _item(paper: Paper, entry: Entry, locator: DatasetLocator, device: str) -> Item:
    status, remarks = state(entry, locator)
    scale = Scale.of("full", entry)
    runnable = sum(1 for _, _, setting in entry.rows() if not setting.missing and (setting.method or entry.computation))
    return Item(
        paper=paper.key,
        entry=entry.name,
        title=entry.title,
        data=[datasets()[name].title for name in entry.datasets],
        methods=[*entry.methods] or ([entry.computation] if entry.computation else []),
        trainings=runnable * scale.trainings,
        seconds={name: cost(paper, entry, Scale.of(name, entry), device, locator) for name in SCALES},
        measured=device == "cpu" and f"{paper.key} {entry.name}" in costs()["measured"],
        device=device,
        status=status,
        remarks=remarks,
    )


def state(entry: Entry, locator: DatasetLocator) -> tuple[str, list[str]]:
    """Whether it can be run here, in a few words, and remarks on what is missing."""
    remarks = list(dict.fromkeys(setting.missing for setting in entry.settings if setting.missing))
    runnable = [s for s in entry.settings if not s.missing and (s.method or s.baseline or entry.computation)]
    if not runnable:
        return "cannot be run", remarks
    unknown = [name for name in entry.methods if name not in METHODS]
    if unknown:
        return "method not available", [*remarks, *(f"{name} is not registered" for name in unknown)]
    if entry.computation:
        return "ready", remarks
    absent = replaced = False
    for name in dict.fromkeys([*entry.datasets, *(setting.public for setting in runnable if setting.public)]):
        found = locator.find(name)
        absent = absent or found is None
        replaced = replaced or (found is not None and found.asked != found.dataset)
        remark = f"{datasets()[name].title} is not there" if found is None else found.remark
        remarks += [remark] if remark and remark not in remarks else []
    if absent:
        return "data not available", remarks
    return ("data not available, a substitute is" if replaced else "ready"), remarks


# Cost


def cost(paper: Paper, entry: Entry, scale: Scale, device: str, locator: DatasetLocator) -> float:
    """Seconds of all trainings and evaluations on this machine.

    The small scale was measured on a CPU. The full scale is an estimate from the measured cost of a record in a step.
    The dataset is the one that would be read here: a substitute counts with its own size.
    """
    known = costs()
    name = f"{paper.key} {entry.name}"
    if scale.name == "small" and device == "cpu" and name in known["measured"]:
        return float(known["measured"][name])
    workers = (os.cpu_count() or 1) if device == "cpu" else 1
    if entry.computation:
        return float(known["computation"][entry.computation] * len(entry.cases) * len(entry.settings)) / workers
    total, trained = 0.0, set()
    for case, _, setting in entry.rows():
        if setting.missing or not setting.method:
            continue
        data = _dataset_read(case, locator)
        method, each = _training_cost(setting, case, scale, data, device)
        key = (data.name, case.records, repr(method), setting.budget(case.epsilon))
        evaluation = known["evaluation"][device] * scale.images
        total += scale.trainings * (evaluation + (0.0 if key in trained else each))
        trained.add(key)
    return total / workers


def _dataset_read(case: Case, locator: DatasetLocator) -> Dataset:
    found, asked = locator.find(case.data), datasets()[case.data]
    return found.dataset if found is not None else datasets().get(asked.substitute, asked)


def _training_cost(setting: Setting, case: Case, scale: Scale, data: Dataset, device: str) -> tuple[Method, float]:
    narrowed = costs()["small"].get(setting.method.removesuffix("-published"), 1.0) if scale.name == "small" else 1.0
    records = min(number for number in (scale.records_of(case), data.records) if number is not None)
    method = scale.method(setting, case)
    seconds = training_seconds(method, records=records, values=_pixels(data.options), device=device)
    return method, narrowed * seconds


def _pixels(options: Mapping[str, Any]) -> int:
    """Numbers in an image; 28×28 grey where nothing is said."""
    side = options.get("size")
    return 3 * side * side if side else 784
