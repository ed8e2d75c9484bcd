"""Worst-case units, neighbour replay over each kind of them, and a search for the unit that moves an answer most."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sfumato.audit.canary import unit_pixels, with_rows
from sfumato.audit.replay import Replay, participants, replay
from sfumato.data import PrivateImages
from sfumato.evaluation.classifiers import Progress, silent
from sfumato.methods.base import Method
from sfumato.privacy import AnyBudget, PrivateRecords
from sfumato.privacy.budget import Unit

CLASSES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Kind:
    """How the pixels and labels of a planted unit are made, and whether there can be only one of its kind."""

    pixels: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """``(own rows, another unit's image) -> rows``, in 0..1 and beyond."""
    label: Callable[[np.ndarray, int, int], np.ndarray] = lambda own, other, classes: own
    """``(own labels, the other unit's label, number of classes) -> labels``."""
    alone: bool = False


def checkerboard(rows: np.ndarray) -> np.ndarray:
    """Alternating black and white pixels in the shape of ``rows``."""
    return np.broadcast_to(np.indices(rows.shape[-2:]).sum(0) % 2, rows.shape)


def _as_it_is(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    return own


KINDS: Mapping[str, Kind] = {
    "black": Kind(lambda own, other: np.zeros_like(own)),
    "white": Kind(lambda own, other: np.ones_like(own)),
    "checkerboard": Kind(lambda own, other: checkerboard(own)),
    "huge": Kind(lambda own, other: np.full_like(own, 1e30)),
    "not a number": Kind(lambda own, other: np.full_like(own, np.nan)),
    "duplicate": Kind(lambda own, other: np.broadcast_to(other, own.shape), lambda own, other, n: own * 0 + other),
    "rare class": Kind(_as_it_is, lambda own, other, classes: own * 0 + classes - 1, alone=True),
    "mislabelled": Kind(_as_it_is, lambda own, other, classes: (own + 1) % classes),
}


def rows_of(private: PrivateRecords, unit: int, kind: Unit) -> np.ndarray:
    """The rows of one unit."""
    if kind == "image":
        return np.array([unit])
    return np.flatnonzero(np.asarray(private._persons) == unit)


def planted(private: PrivateRecords, kind: str, units: Sequence[int], *, unit: Unit = "image") -> PrivateRecords:
    """The collection with these units replaced by this kind; a person is replaced with all images."""
    chosen = KINDS[kind]
    pixels, labels, classes = unit_pixels(private), np.array(private._labels, dtype=np.int64), len(private.classes)
    rows = [rows_of(private, one, unit) for one in units]
    others = np.setdiff1d(np.arange(len(labels)), np.concatenate(rows))
    # Copy an ordinary image: a copy of NaN counts as zero and would show nothing.
    ordinary = [row for row in others if np.isfinite(pixels[row]).all() and np.abs(pixels[row]).max() <= 1]
    model = int(ordinary[0]) if ordinary else int(rows[0][0])
    if chosen.alone and classes > 1:
        labels[labels == classes - 1] = 0
    for own in rows:
        pixels[own] = chosen.pixels(pixels[own], pixels[model])
        labels[own] = chosen.label(labels[own], int(labels[model]), classes)
    return with_rows(private, pixels, labels, private._persons)


def worst_case_images(
    count: int = 48, *, size: int = 28, labelled: bool = True, persons: bool = False
) -> PrivateImages:
    """``count`` random images and twelve worst-case ones; with ``persons``, three images of one class each."""
    random = np.random.default_rng(7)
    images = random.random((count, 1, size, size), dtype=np.float32)
    labels = np.arange(count) // 3 % 3
    board = (np.indices((size, size)).sum(0) % 2).astype(np.float32)
    special = [
        np.zeros((size, size)),
        np.ones((size, size)),
        board,
        1 - board,
        np.full((size, size), 1e30),
        np.full((size, size), np.nan),
        np.full((size, size), np.inf),
        np.full((size, size), -1e5),
        images[0, 0],
        images[0, 0],
        images[1, 0],
        np.eye(size),
    ]
    pixels = np.concatenate([np.stack(special)[:, None].astype(np.float32), images])
    # The last of these is the only record of class d, and the copy of images[1] has another label.
    labels = np.concatenate([np.array([0, 0, 1, 1, 1, 0, 1, 2, 0, 0, 2, 3]), labels])
    owners = np.concatenate([np.arange(12), 12 + np.arange(count) // 3]) if persons else None
    if not labelled:
        return PrivateImages(pixels, None, persons=owners)
    return PrivateImages(pixels, labels, classes=CLASSES, persons=owners)


@dataclass
class Sweep:
    """One replay for each kind of unit, and the search."""

    kinds: dict[str, Replay] = field(default_factory=dict)
    tried: int = 0

    @property
    def total(self) -> Replay:
        found = Replay()
        for result in self.kinds.values():
            found.add_all(result)
        return found

    def to_json(self) -> dict[str, Any]:
        total = self.total
        return {
            "flagged": total.flagged,
            "pairs": total.pairs,
            "search_tried": self.tried,
            "movement": total.movement,
            "vacuous": total.vacuous(),
            "kinds": {kind: result.to_json() for kind, result in self.kinds.items()},
        }


def sweep(
    method: Method,
    private: PrivateRecords,
    *,
    budget: AnyBudget,
    pairs: int = 40,
    tries: int = 40,
    seed: int = 0,
    max_images_per_unit: int = 4,
    progress: Progress = silent,
) -> Sweep:
    """``pairs`` neighbours for each kind of unit in ``KINDS``, then ``tries`` units of the search."""
    found = Sweep()
    options: dict[str, Any] = {"budget": budget, "max_images_per_unit": max_images_per_unit}
    present = participants(method, private, budget, seed)
    if not present:
        found.kinds["any"] = replay(method, private, seed=seed, pairs=1, **options)
        return found
    for number, (name, kind) in enumerate(KINDS.items()):
        progress("kinds of units", number, len(KINDS) + 1)
        if not kind.alone:
            # Half of the units stay as they are, so that there are ordinary units which a planted one could affect.
            units = present[: min(pairs, max(1, len(present) // 2))]
            done = found.kinds[name] = Replay()
            turn = seed
            while units and done.pairs < pairs:
                data = planted(private, name, units, unit=budget.unit)
                done.add_all(replay(method, data, seed=turn, pairs=pairs - done.pairs, units=units, **options))
                if done.stopped:
                    break
                turn += 1
                units = participants(method, private, budget, turn)[: len(units)] or units
            continue
        done = found.kinds[name] = Replay()
        for turn in range(seed, seed + pairs):
            units = participants(method, private, budget, turn)[:1]
            if units and not done.stopped:
                data = planted(private, name, units, unit=budget.unit)
                done.add_all(replay(method, data, seed=turn, pairs=1, units=units, **options))
    progress("kinds of units", len(KINDS), len(KINDS) + 1)
    if tries:
        found.kinds["search"] = search(method, private, unit=present[0], tries=tries, seed=seed, **options)
        found.tried = tries
    return found


def search(
    method: Method,
    private: PrivateRecords,
    *,
    budget: AnyBudget,
    unit: int,
    tries: int,
    seed: int = 0,
    max_images_per_unit: int = 4,
) -> Replay:
    """Hill climbing on one unit's pixels and label: what moves an answer further is kept; every fourth try is fresh."""
    random = np.random.default_rng(seed)
    total, best, score = Replay(), planted(private, "mislabelled", [unit], unit=budget.unit), -1.0
    rows = rows_of(private, unit, budget.unit)
    for turn in range(tries):
        candidate = _mutated(private if turn % 4 == 3 else best, rows, random)
        result = replay(
            method,
            candidate,
            budget=budget,
            pairs=1,
            seed=seed,
            units=[unit],
            max_images_per_unit=max_images_per_unit,
        )
        total.add_all(result)
        # The product favours a unit that moves every block; a maximum would be satisfied by one block.
        reached = float(np.prod([min(value, 1e6) for value in result.movement.values()])) if result.movement else 0.0
        if reached > score:
            best, score = candidate, reached
        if total.stopped:
            break
    return total


def _mutated(private: PrivateRecords, rows: np.ndarray, random: np.random.Generator) -> PrivateRecords:
    pixels, labels = unit_pixels(private), np.array(private._labels, dtype=np.int64)
    own = pixels[rows]
    match random.integers(7):
        case 0:
            own = own * np.float32(10.0 ** random.uniform(-3, 6))
        case 1:
            own = own + random.normal(0, 10.0 ** random.uniform(-2, 3), own.shape)
        case 2:
            own = 1 - own
        case 3:
            own = np.where(random.random(own.shape) < 0.1, random.choice([0.0, 1.0, -1e3, 1e3]), own)
        case 4:
            own = own * checkerboard(own)
        case 5:
            own = pixels[random.integers(len(pixels), size=len(rows))] * np.float32(random.normal())
        case _:
            own = random.random(own.shape)
    pixels[rows] = own
    if random.random() < 0.3:
        labels[rows] = random.integers(len(private.classes))
    return with_rows(private, pixels, labels, private._persons)
