"""Whether a unit gives the same bits at every place of a microbatch, and what is done where it does not.

A kernel that divides its work unevenly (a last tile that is split along the inner dimension, the remainder of a vector
loop, another thread) may round equal rows differently. This is tested on random images before a size of microbatch is
used, never on records: the outcome decides how the work is done, and a warning tells it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sfumato.privacy.gradients.batch import Batch, Microbatch, Part
from sfumato.privacy.sums import add_to

Run = Callable[[Microbatch], dict[str, Tensor]]
"""A microbatch → name → the exact sums over its units or, for functions of rows, a result for each row."""


class RowOrderWarning(UserWarning):
    """Microbatches are smaller, or on fewer threads, than they could be if rows were rounded alike."""


@dataclass
class Places:
    """For each way of running a microbatch: the fastest form of it in which no unit's bits depend on its place.

    Guarantee. In the form that is chosen, random units gave the same bits in three orders and in two halves beside
    padding.
    """

    by_row: bool = False
    """Whether a run gives a result for each row, and not a sum."""
    _chosen: dict[tuple[object, ...], tuple[str, int]] = field(default_factory=dict)

    def choose(self, run: Run, micro: Microbatch, *, key: tuple[object, ...], what: str, eager: Run) -> Run:
        """``run``, or the fastest way to the same in which places do not matter; ``eager`` takes any size.

        ``key`` tells apart the ways of running that this object is asked about, ``what`` names one in a warning.
        """
        key = (*key, micro.units)
        if key not in self._chosen:
            self._chosen[key] = self._first_sound(run, public_copy(micro), what, eager)
        return next(way for name, piece, way in self._ways(run, micro, eager) if (name, piece) == self._chosen[key])

    def forget(self, first: object) -> None:
        """Test the ways again whose key begins so, before they are used: they are not the ones that were tested."""
        self._chosen = {key: chosen for key, chosen in self._chosen.items() if key[0] != first}

    @property
    def fallbacks(self) -> list[str]:
        """A sentence for every size that is not run as it was asked for."""
        found = ((key[-1], *chosen) for key, chosen in self._chosen.items() if chosen[0] != "whole")
        return [f"{size} units: {name}, {piece} at a time" for size, name, piece in found]

    def _first_sound(self, run: Run, public: Microbatch, what: str, eager: Run) -> tuple[str, int]:
        first: list[str] = []
        for name, piece, way in self._ways(run, public, eager):
            found = [] if piece == 1 else self.unequal(way, public)
            if not found:
                if name != "whole":
                    _warn(public, what or ", ".join(first[:3]), name, piece)
                return name, piece
            first = first or found
        raise AssertionError("a microbatch of one unit has one order")

    def _ways(self, run: Run, micro: Microbatch, eager: Run) -> Iterator[tuple[str, int, Run]]:
        """Name, units of a piece, and the way, the fastest first."""
        size = micro.units
        yield "whole", size, run
        if micro.parts[0].batch.images.device.type == "cpu" and torch.get_num_threads() > 1:
            yield "one thread", size, functools.partial(_on_one_thread, run)
        for piece in range(size // 2, 0, -1):
            if size % piece == 0:  # every piece has the same shape
                yield "pieces", piece, functools.partial(self._in_pieces, eager, piece)

    def _in_pieces(self, run: Run, piece: int, micro: Microbatch) -> dict[str, Tensor]:
        starts = range(0, micro.units, piece)
        found = [run(_changed(micro, lambda b, s=start: b.take(s, s + piece))) for start in starts]  # type: ignore[misc]
        if self.by_row:
            return {name: torch.cat([one[name] for one in found]) for name in found[0]}
        total: dict[str, Tensor] = {}
        for one in found:
            add_to(total, one)
        return total

    def unequal(self, run: Run, micro: Microbatch) -> list[str]:
        """Names whose result changes with the order of the units, or with which units are computed side by side."""
        size = micro.units
        units, whole = torch.arange(size), self._result(run, micro)
        pairs = []
        for order in (units.flip(0), units.roll(1)):
            other = self._result(run, _changed(micro, lambda b, o=order: b.select(o.to(b.weights.device))))  # type: ignore[misc]
            pairs.append((other, {n: v[order.to(v.device)] for n, v in whole.items()} if self.by_row else whole))
        kept = (units < size // 2, units >= size // 2)
        first, second = (self._result(run, _keeping(micro, half)) for half in kept)
        if self.by_row:
            halves = {name: torch.cat([v[kept[0]], second[name][kept[1]]]) for name, v in first.items()}
        else:
            halves = {name: value + second[name] for name, value in first.items()}
        pairs.append((halves, whole))
        return [name for name in whole if not all(torch.equal(found[name], right[name]) for found, right in pairs)]

    def _result(self, run: Run, micro: Microbatch) -> dict[str, Tensor]:
        found = run(micro)
        if not self.by_row:
            return found
        # By unit; NaN is not equal to itself.
        return {name: torch.nan_to_num(v.detach()).reshape(micro.units, -1).cpu() for name, v in found.items()}


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

    return replace(micro, parts=tuple(replace(part, batch=copy(part)) for part in micro.parts))


def _changed(micro: Microbatch, change: Callable[[Batch], Batch]) -> Microbatch:
    return replace(micro, parts=tuple(replace(part, batch=change(part.batch)) for part in micro.parts))


def _keeping(micro: Microbatch, kept: Tensor) -> Microbatch:
    """These units, and padding in place of the others."""

    def keep(batch: Batch) -> Batch:
        units = kept.to(batch.weights.device)
        rows = units.repeat_interleave(batch.rows_per_unit)
        images = torch.where(rows.view(-1, *(1,) * (batch.images.dim() - 1)), batch.images, 0)
        return replace(batch, images=images, weights=torch.where(units[:, None], batch.weights, 0.0))

    return _changed(micro, keep)


def _on_one_thread(run: Run, micro: Microbatch) -> dict[str, Tensor]:
    """Run with a single CPU thread, so that no row is at the border between two of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run(micro)
    finally:
        torch.set_num_threads(threads)


def _warn(micro: Microbatch, what: str, name: str, piece: int) -> None:
    size, device = micro.units, micro.parts[0].batch.images.device
    cost = "on one thread instead of several" if name == "one thread" else f"in pieces of {piece} units"
    warnings.warn(
        f"in a microbatch of {size} units on {device} a unit's result depends in its last bits on the unit's row "
        f"(seen in {what}), so that one record could move the others. Microbatches of this size therefore run {cost}. "
        "Another microbatch size or dtype may avoid this",
        RowOrderWarning,
        stacklevel=2,
    )
