"""Whether a unit gives the same bits at every row of a microbatch, and what is done where it does not.

A kernel that divides its work unevenly (a last tile that is split along the inner dimension, the remainder of a vector
loop, another thread) may round equal rows differently. This is tested on random images before a size of microbatch is
used, never on records: the outcome decides how the work is done, and a warning tells it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from sfumato.privacy.gradients.agreement import Run, few_units
from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.gradients.microbatches import Microbatch
from sfumato.privacy.gradients.per_class import Part

Argument = TypeVar("Argument")
Result = TypeVar("Result")

_SHOWN = 3  # parameters that a warning names


class RowOrderWarning(UserWarning):
    """Microbatches are smaller, or on fewer threads, than they could be if rows were rounded alike."""


@dataclass
class RowOrder:
    """For each way of running a microbatch and each size: the pieces in which rows are rounded alike."""

    _chosen: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)

    def choose(self, run: Run, micro: Microbatch, *, kind: str, eager: Run) -> Run:
        """``run``, or the fastest way to the same sums in which no unit's bits depend on its row.

        ``kind`` tells apart the ways of running that this object is asked about; ``eager`` takes any size.
        """
        size = _size(micro)
        if (kind, size) not in self._chosen:
            self._chosen[kind, size] = _first_sound(run, public_copy(micro), kind, eager)
        name, piece = self._chosen[kind, size]
        return next(way for own, pieces, way in _ways(run, size, kind, eager) if (own, pieces) == (name, piece))

    def forget(self, kind: str) -> None:
        """Test this way again before it is used: it is no longer the one that was tested."""
        self._chosen = {key: chosen for key, chosen in self._chosen.items() if key[0] != kind}

    @property
    def fallbacks(self) -> list[str]:
        """A sentence for every size that is not run as it was asked for."""
        return [
            f"{size} units: {name}, {piece} at a time"
            for (kind, size), (name, piece) in self._chosen.items()
            if (name, piece) != (kind, size)
        ]


def _first_sound(run: Run, micro: Microbatch, kind: str, eager: Run) -> tuple[str, int]:
    size, unequal = _size(micro), list[str]()
    several_threads = micro.parts[0].batch.images.device.type == "cpu" and torch.get_num_threads() > 1
    for name, piece, way in _ways(run, size, kind, eager):
        if name == "one thread" and not several_threads:
            continue
        found = [] if piece == 1 else unequal_parameters(way, micro)
        if not found:
            if (name, piece) != (kind, size):
                _warn(micro, unequal, name, piece)
            return name, piece
        unequal = unequal or found
    raise AssertionError("a microbatch of one unit has one order")


def _ways(run: Run, size: int, kind: str, eager: Run) -> Iterator[tuple[str, int, Run]]:
    """Name, units of a piece, and the way, the fastest first."""
    yield kind, size, run
    yield "one thread", size, functools.partial(on_one_thread, run)
    for piece in range(size // 2, 0, -1):
        # Every piece has the same shape.
        if size % piece == 0:
            yield "pieces", piece, functools.partial(in_pieces, eager, piece)


def _warn(micro: Microbatch, unequal: list[str], name: str, piece: int) -> None:
    size, device = _size(micro), micro.parts[0].batch.images.device
    cost = (
        "on one thread instead of several"
        if name == "one thread"
        else f"in pieces of {piece} units, {size // piece} passes in place of one"
    )
    warnings.warn(
        f"in a microbatch of {size} units on {device} a unit's gradient depends in its last bits on the unit's row "
        f"(first seen in {', '.join(unequal[:_SHOWN])}), so that one record could move the others. Microbatches of "
        f"this size therefore run {cost}. Another microbatch size, dtype or memory format may avoid this",
        RowOrderWarning,
        stacklevel=2,
    )


def unequal_parameters(run: Run, micro: Microbatch) -> list[str]:
    """Parameters whose sum changes with the order of the units, or with which units are computed side by side."""
    whole, size = run(micro), _size(micro)
    units = torch.arange(size)
    others = [run(reordered(micro, units.flip(0))), run(reordered(micro, units.roll(1)))]
    first, second = (run(keeping(micro, kept)) for kept in (units < size // 2, units >= size // 2))
    halves = {name: sums + second[name] for name, sums in first.items()}
    return [name for name in whole if not all(torch.equal(whole[name], other[name]) for other in (*others, halves))]


def _size(micro: Microbatch) -> int:
    return micro.units


def _changed(micro: Microbatch, change: Callable[[Part], Batch]) -> Microbatch:
    return replace(micro, parts=tuple(replace(part, batch=change(part)) for part in micro.parts))


def reordered(micro: Microbatch, order: Tensor) -> Microbatch:
    """The same units in another order."""
    return _changed(micro, lambda part: part.batch.select(order.to(part.batch.weights.device)))


def keeping(micro: Microbatch, kept: Tensor) -> Microbatch:
    """These units, and padding in place of the others."""

    def keep(part: Part) -> Batch:
        batch = part.batch
        units = kept.to(batch.weights.device)
        rows = units.repeat_interleave(batch.rows_per_unit)
        images = torch.where(rows.view(-1, *(1,) * (batch.images.dim() - 1)), batch.images, 0)
        return replace(batch, images=images, weights=torch.where(units[:, None], batch.weights, 0.0))

    return _changed(micro, keep)


def public_copy(micro: Microbatch) -> Microbatch:
    """A microbatch of the same shapes that holds no record: random images and state, the first label."""

    def copy(part: Part) -> Batch:
        batch, rows = part.batch, torch.arange(len(part.batch.labels), device=part.batch.labels.device)
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(batch.images.shape, generator=generator).to(batch.images)
        state = batch.state
        if state is not None:
            state = torch.randn(state.shape, generator=generator).to(state)
        labels = torch.full_like(batch.labels, int(part.prefix.split(".")[1]) if part.prefix else 0)
        width = batch.rows_per_unit
        random = replace(batch.random, rows=(rows // width).to(batch.random.rows), draw=(rows % width).to(rows))
        return Batch(images, labels, random, torch.full_like(batch.weights, 1.0 / width), state)

    return _changed(micro, copy)


def on_one_thread(run: Callable[[Argument], Result], argument: Argument) -> Result:
    """Run with a single CPU thread, so that no row is at the border between two of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run(argument)
    finally:
        torch.set_num_threads(threads)


def in_pieces(run: Run, piece: int, micro: Microbatch) -> dict[str, Tensor]:
    """The sums of a microbatch from smaller ones of one shape."""
    total: dict[str, Tensor] = {}
    for start in range(0, _size(micro), piece):
        few = Microbatch(tuple(few_units(part, piece, start) for part in micro.parts), micro.shared)
        for name, values in run(few).items():
            total[name] = total[name] + values if name in total else values
    return total
