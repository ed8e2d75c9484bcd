"""The list of all entries: what each needs, what it costs on this machine, and whether it can be run on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch

from sfumato.experiments.papers.collection import DatasetLocator, collections
from sfumato.experiments.papers.scale import SCALES, Scale
from sfumato.experiments.papers.specification import Entry, Paper, papers, read_toml
from sfumato.methods import METHODS, Method


@dataclass(frozen=True)
class Item:
    """One line of the list."""

    paper: str
    entry: str
    title: str
    data: list[str]
    methods: list[str]
    trainings: int
    seconds: dict[str, float | None]
    """By scale, trainings and judgements together; ``None`` where a method's cost was never measured."""
    device: str
    status: str
    remarks: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def catalogue(shelf: DatasetLocator, *, device: str | None = None) -> list[Item]:
    """All entries, in the papers' order."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return [_item(paper, entry, shelf, device) for paper in papers().values() for entry in paper.entries.values()]


def _item(paper: Paper, entry: Entry, shelf: DatasetLocator, device: str) -> Item:
    status, remarks = state(entry, shelf)
    scale = Scale.of("full", entry)
    runnable = sum(1 for _, _, setting in entry.rows() if not setting.missing and (setting.method or entry.experiment))
    return Item(
        paper=paper.key,
        entry=entry.name,
        title=entry.title,
        data=[collections()[name].title for name in entry.collections],
        methods=[*entry.methods] or ([entry.experiment] if entry.experiment else []),
        trainings=runnable * scale.trainings,
        seconds={name: cost(entry, Scale.of(name, entry), device) for name in SCALES},
        device=device,
        status=status,
        remarks=remarks,
    )


def state(entry: Entry, shelf: DatasetLocator) -> tuple[str, list[str]]:
    """Whether it can be run here, in a few words, and what there is to say about it."""
    remarks = list(dict.fromkeys(setting.missing for setting in entry.settings if setting.missing))
    runnable = [s for s in entry.settings if not s.missing and (s.method or s.baseline or entry.experiment)]
    if not runnable:
        return "cannot be run", remarks
    unknown = [name for name in entry.methods if name not in METHODS]
    if unknown:
        return "method not available", [*remarks, *(f"{name} is not registered" for name in unknown)]
    if entry.experiment:
        return "ready", remarks
    absent = replaced = False
    for name in dict.fromkeys([*entry.collections, *(setting.public for setting in runnable if setting.public)]):
        found = shelf.find(name)
        absent = absent or found is None
        replaced = replaced or (found is not None and found.asked != found.collection)
        remark = f"{collections()[name].title} is not there" if found is None else found.remark
        remarks += [remark] if remark and remark not in remarks else []
    if absent:
        return "data not available", remarks
    return ("data not available, a substitute is" if replaced else "ready"), remarks


# Cost


@cache
def _costs() -> dict[str, Any]:
    return read_toml("costs.toml")


def cost(entry: Entry, scale: Scale, device: str) -> float | None:
    """Seconds of all trainings and judgements on this machine, from what a record in a step was measured to cost."""
    costs = _costs()
    workers = (os.cpu_count() or 1) if device == "cpu" else 1
    total, known = 0.0, set()
    for case, _, setting in entry.rows():
        if setting.missing or not setting.method:
            continue
        if setting.method not in METHODS or device not in costs["methods"].get(setting.method, {}):
            return None
        about = collections()[case.data]
        records = min(number for number in (scale.records_of(case), about.records) if number is not None)
        method = scale.method(setting, case)
        each = costs["methods"][setting.method][device] * _work(method, records) * _pixels(about.options) / 784
        key = (case.data, case.records, repr(method), setting.budget(case.epsilon))
        judged = costs["judging"][device] * scale.images
        total += scale.trainings * (judged + (0.0 if key in known else each))
        known.add(key)
    return total / workers


def _work(method: Method, records: int) -> float:
    """How often a training looks at a record, or at an image of its own making."""
    parameters: Mapping[str, Any] = method.parameters()
    events = method.queries()
    asked = sum(event.sampling_rate * event.steps * records for event in events) * parameters.get("draws", 1)
    learned = parameters.get("iterations", 0) * parameters.get("batch_size", 2 * parameters.get("fakes_per_class", 0))
    if method.variant in method.raw_variants:
        rounds = parameters.get("published_iterations", parameters.get("iterations", 0))
        return float(rounds * parameters.get("published_batch_size", parameters.get("batch_size", 1)))
    return float(asked + (learned if "steps" not in parameters or parameters["steps"] == 1 else 0))


def _pixels(options: Mapping[str, Any]) -> int:
    """Numbers in an image; 28×28 grey where nothing is said."""
    side = options.get("size")
    return 3 * side * side if side else 784
