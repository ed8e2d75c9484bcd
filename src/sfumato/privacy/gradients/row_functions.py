"""Functions of rows, in passes of one shape in which a unit gives the same bits at every place.

The same is tested for sums of gradients (``row_order``). Here a function's results are compared unit by unit, on random
images of the shape of the pass, before the shape is used: the outcome decides how the work is divided, and no record
has a part in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.agreement import deterministic
from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.gradients.microbatches import Microbatch
from sfumato.privacy.gradients.per_class import Part
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.row_order import RowOrderWarning, keeping, on_one_thread, public_copy, reordered

Function = Callable[[Batch], Tensor]
"""A pass → a result for each row, or for each unit, that depends on this row or unit alone."""


@dataclass(frozen=True)
class _Way:
    piece: int
    one_thread: bool = False

    def run(self, function: Function, batch: Batch) -> Tensor:
        pieces = [batch.take(start, start + self.piece) for start in range(0, batch.units, self.piece)]
        if self.one_thread:
            return torch.cat([on_one_thread(function, piece) for piece in pieces])
        return torch.cat([function(piece) for piece in pieces])


@dataclass
class RowPasses:
    """For each function and each shape of a pass: the largest pieces in which rows are rounded alike."""

    _chosen: dict[tuple[object, ...], _Way] = field(default_factory=dict)

    def __call__(self, what: str, function: Function, batch: Batch, *, code: object = None) -> Tensor:
        """The results of the function that is called ``what``; another ``code`` under this name is tested anew."""
        with deterministic(batch.images.device, Performance()):
            return self._way(what, function, batch, code).run(function, batch) if batch.units else function(batch)

    def prepare(self, what: str, function: Function, batch: Batch, *, code: object = None) -> None:
        """Decide on random images how passes of this shape are run, so that what is warned of shows no record."""
        with deterministic(batch.images.device, Performance()):
            self._way(what, function, batch, code)

    def _way(self, what: str, function: Function, batch: Batch, code: object) -> _Way:
        images = batch.images
        key = (what, code, batch.units, images.shape, images.dtype, images.device)
        if key not in self._chosen:
            self._chosen[key] = _first_sound(what, function, batch)
        return self._chosen[key]


def _first_sound(what: str, function: Function, batch: Batch) -> _Way:
    public = public_copy(_micro(batch))
    for way in _ways(batch):
        if way.piece == 1 or _rows_alike(lambda part, way=way: way.run(function, part), public):  # type: ignore[misc]
            if way != _Way(batch.units):
                _warn(what, batch, way)
            return way
    raise AssertionError("a pass of one unit has one order")


def _ways(batch: Batch) -> Iterator[_Way]:
    """The fastest first."""
    yield _Way(batch.units)
    if batch.images.device.type == "cpu" and torch.get_num_threads() > 1:
        yield _Way(batch.units, one_thread=True)
    for piece in range(batch.units // 2, 0, -1):
        if batch.units % piece == 0:  # every piece has the same shape
            yield _Way(piece)


def _rows_alike(function: Function, public: Microbatch) -> bool:
    """Whether each unit has the same bits in other orders, and beside padding."""
    size = public.parts[0].batch.units

    def results(micro: Microbatch) -> Tensor:
        # NaN is not equal to itself.
        return torch.nan_to_num(function(micro.parts[0].batch).detach()).reshape(size, -1)

    whole, units = results(public), torch.arange(size)
    for order in (units.flip(0), units.roll(1)):
        if not torch.equal(results(reordered(public, order)), whole[order.to(whole.device)]):
            return False
    for kept in (units < size // 2, units >= size // 2):
        if not torch.equal(results(keeping(public, kept))[kept.to(whole.device)], whole[kept.to(whole.device)]):
            return False
    return True


def _micro(batch: Batch) -> Microbatch:
    return Microbatch((Part(nn.Identity(), "", batch),))


def _warn(what: str, batch: Batch, way: _Way) -> None:
    how = "on one thread instead of several" if way.one_thread else f"in pieces of {way.piece} units"
    warnings.warn(
        f"in a pass of {batch.units} units on {batch.images.device} the result of {what!r} for a unit depends in its "
        f"last bits on the unit's row, so that one record could move the others. Such passes therefore run {how}",
        RowOrderWarning,
        stacklevel=2,
    )
