"""Checks of a method's loss or function on random images: no row may see another, and nothing may be kept or let out.

They run before the first step and again during training, at several batch sizes, and release nothing: a refusal speaks
about random images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients import loop
from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.engine import clipped_sum
from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.groups import Clip
from sfumato.privacy.gradients.guard import Guard
from sfumato.privacy.gradients.mixing import refuse_mixing
from sfumato.privacy.gradients.per_class import PerClass, losses
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.python_state import python_state
from sfumato.privacy.gradients.rounding import arithmetic, without_tf32
from sfumato.privacy.gradients.row_order import RowOrderWarning
from sfumato.privacy.gradients.shards import on_shards

PROBED = 6
"""Units of the closest look: few, because a leak through a mean over the batch shrinks with its size."""
PROBE_ROWS = 70
"""Rows of the largest probe: more than 64, from which some losses behave differently."""
_ROUNDED_ROWS = 0.25
"""The share of rows that may differ between batch sizes. In another size numbers are rounded otherwise, and an
iterative function may follow the sign of a number near zero; a function of the batch size changes nearly every row.
Private rows come in microbatches of one size, so that neither is a leak there."""

_MIXES = (
    "changing one {0} moved another {0}'s {1}: the function or the model mixes the rows of a batch (a mean over "
    "the batch, a rank, attention across rows, a running statistic). One record could then move every contribution. "
    "Let each row depend on its own row only"
)
_SIZE = (
    "a {0}'s {1} changes with the number of rows in the batch, which is private. Do not divide by the batch size or "
    "by len(images), and do not use a row's position; return one result for each row"
)


def due(index: int, steps: int) -> bool:
    """Whether a step repeats the checks: at 4, 16, 64, … and the last, whatever the data is."""
    return index == steps - 1 or (index >= 4 and index.bit_count() == 1 and index.bit_length() % 2 == 1)


@without_tf32()
def check(model: nn.Module, loss: Loss, batch: Batch, clip: Clip) -> None:
    """Refuse a model or loss that breaks the contract. Costs a few small passes; releases nothing.

    1. No module mixes the batch.
    2. The guard finds nothing that could carry private values out of the loss.
    3. The same rows give the same losses twice.
    4. Changing units moves no other unit's loss, and a unit alone has the loss it has among others.
    5. The sum of clipped gradients is the plain loop's.
    """
    refuse_mixing(model)
    if batch.units == 0:
        return
    used = arithmetic((p.dtype for p in model.parameters()), batch.images.device)
    _guard(loss, batch, lambda guard, wrapped, part: _differentiate(guard, model, wrapped, part))
    with torch.no_grad():
        _check_rows(lambda part: _unit_losses(model, loss, part), model, batch, used.roundoff, ("record", "loss"))
    few = batch.take(0, min(PROBED, batch.units))
    _compare(model, loss, few, clip, tolerance=max(1e-6, min(0.25, 4096.0 * used.roundoff)))


@without_tf32()
def check_rows(function: Callable[..., Tensor], batch: Batch) -> tuple[int, ...]:
    """Refuse a function ``(images, labels, random[, state]) -> [rows, ...]`` in which one row sees another.

    Returns the shape of one row's result, which is public: it was computed from random images.
    """
    shape = tuple(batch.results(function).shape[1:])

    def values(part: Batch) -> Tensor:
        found = part.results(function)
        if found.shape[:1] != part.labels.shape or tuple(found.shape[1:]) != shape:
            raise UnsupportedModel("the function must give one vector of a fixed shape for each of the rows it gets")
        return found.detach().double().reshape(part.units, -1)

    _guard(function, batch, lambda guard, wrapped, part: _discard(part.results(wrapped)))
    _check_rows(values, None, batch, torch.finfo(batch.images.dtype).eps / 2, ("record", "contribution"))
    return shape


@without_tf32()
def check_shards(function: Callable[..., Tensor], batch: Batch) -> None:
    """Refuse a function of shards in which one shard sees another."""

    def values(part: Batch) -> Tensor:
        return on_shards(function, part).detach().double().flatten(1)

    # Which shards are new may decide what is computed for them: the shape of the memory is fixed all the same.
    _guard(function, batch, lambda guard, wrapped, part: _discard(on_shards(wrapped, part)), fixed_shapes=False)
    _check_rows(values, None, batch, torch.finfo(batch.images.dtype).eps / 2, ("shard", "memory"))


def guard_function(function: Callable[..., Tensor], call: Callable[[Callable[..., Tensor]], object]) -> None:
    """Run ``call`` with the guarded function, twice; for functions of several records."""
    states = []
    for _ in range(2):
        guard = Guard(fixed_shapes=False)
        with guard():
            _discard(call(guard.wrap(function)))
        states.append(python_state(function))
    _refuse_changed(*states)


def _refuse_changed(before: dict[str, object], after: dict[str, object]) -> None:
    if after != before:
        raise UnsupportedModel(
            "the function was refused on random images: a call changes Python state that outlives it (a counter, a "
            "list, a cache of batch sizes). Let it depend on its arguments and public constants alone"
        )


Run = Callable[[Guard, Callable[..., Tensor], Batch], None]


def _guard(function: Callable[..., Tensor], batch: Batch, run: Run, *, fixed_shapes: bool = True) -> None:
    """Run the function under the guard at every size; from the second call on, Python state must not change."""
    before: dict[str, object] | None = None
    for size in sorted({1, 2, PROBED, batch.units}):
        if size > batch.units:
            continue
        guard = Guard(fixed_shapes=fixed_shapes)
        with guard():
            run(guard, guard.wrap(function), batch.take(0, size))
        after = python_state(function)
        _refuse_changed(after if before is None else before, after)
        before = after


def _discard(result: object) -> None:
    """Nothing of a guarded call may stay alive."""


def _differentiate(guard: Guard, model: nn.Module, loss: Loss, batch: Batch) -> None:
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad():
        total = losses(model, loss, batch).sum()
        if total.requires_grad and parameters:
            with guard.backward():
                torch.autograd.grad(total, parameters, allow_unused=True)


def _check_rows(
    values: Callable[[Batch], Tensor], model: nn.Module | None, batch: Batch, roundoff: float, what: tuple[str, str]
) -> None:
    """``values`` gives one row for each unit, which may depend on that unit alone."""
    for size in sorted({min(PROBED, batch.units), batch.units}):
        part = batch.take(0, size)
        before = values(part)
        # The largest finite value sets the scale of rounding: every row went through sums of that size.
        scale = max(1e-12, float(torch.nan_to_num(before, nan=0.0, posinf=0.0, neginf=0.0).abs().max()))
        exact, loose = (factor * max(roundoff, 2.0**-50) * scale for factor in (256.0, 4096.0))
        if not _same(before, values(part), exact):
            raise UnsupportedModel(
                "the function gives other numbers for the same rows the second time: it draws from a generator other "
                "than `random` or changes the model. Take every draw from `random`"
            )
        for unit in sorted({0, size // 2, size - 1}):
            others = torch.arange(size, device=before.device) != unit
            after = values(disturbed(model, part, unit))
            darkened = values(_others_black(part, unit))
            if not _same(before[others], after[others], exact) or not _same(before[unit], darkened[unit], exact):
                raise UnsupportedModel(_MIXES.format(*what))
        # Alone, and from the large batch in pieces: another number of rows, other positions.
        step = 1 if size <= PROBED else PROBED
        pieces = torch.cat([values(part.take(i, min(size, i + step))) for i in range(0, size, step)])
        if _share_of_rows(before, pieces, loose) > _ROUNDED_ROWS:
            raise UnsupportedModel(_SIZE.format(*what))


def _unit_losses(model: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    with torch.enable_grad():
        # A loss may differentiate the network, so gradients stay on.
        rows = losses(model, loss, batch).detach()
    if rows.shape != batch.weights.flatten().shape:
        raise UnsupportedModel("the loss must return one number for each row: reduce over pixels, never over the batch")
    weights = batch.weights.flatten()
    return torch.where(weights > 0, rows.double() * weights, 0.0).view(batch.units, -1).sum(1)


def _same(one: Tensor, other: Tensor, room: float) -> bool:
    return not _share_of_rows(one[None], other[None], room)


def _share_of_rows(one: Tensor, other: Tensor, room: float) -> float:
    """The share of rows in which a number differs by more than ``room``."""
    both_odd = ~torch.isfinite(one) & ~torch.isfinite(other)
    same = both_odd | ((one - other).abs() <= room)
    return float((~same.view(len(same), -1).all(1)).double().mean())


def _others_black(batch: Batch, unit: int) -> Batch:
    """The batch with every other unit's images black, so that its statistics and ranks change a lot."""
    k = batch.rows_per_unit
    images = torch.zeros_like(batch.images)
    images[unit * k : (unit + 1) * k] = batch.images[unit * k : (unit + 1) * k]
    return replace(batch, images=images)


def disturbed(model: nn.Module | None, batch: Batch, unit: int) -> Batch:
    """The unit turned into another: negative image, next label, other draws, other state."""
    k = batch.rows_per_unit
    rows = slice(unit * k, (unit + 1) * k)
    images, labels = batch.images.clone(), batch.labels.clone()
    images[rows] = 1.0 - 0.7 * images[rows].flip(-1)
    present = labels.unique()
    if len(present) > 1 and not isinstance(model, PerClass):
        # A label that occurs in the batch, so that it is surely one the model knows.
        labels[rows] = present[(torch.searchsorted(present, labels[rows]) + 1) % len(present)]
    draw = batch.random.draw.clone()
    draw[rows] += 1 << 20
    state = batch.state
    if state is not None:
        state = state.clone()
        state[rows] = -1.5 * state[rows] + 0.1
    return replace(batch, images=images, labels=labels, random=replace(batch.random, draw=draw), state=state)


def _compare(model: nn.Module, loss: Loss, few: Batch, clip: Clip, *, tolerance: float) -> None:
    others = few
    for unit in range(few.units):
        others = disturbed(model, others, unit)
    # A ReLU whose input is zero but for rounding falls to one side in a batch and to the other alone. It hardly does so
    # on two sets of pictures; a layer that is wrong in a batch is wrong on both.
    if not _agree(model, loss, few, clip, tolerance) and not _agree(model, loss, others, clip, tolerance):
        raise UnsupportedModel(
            "the fast sum of clipped gradients disagrees with the plain loop on a few records; the loss or a layer "
            "behaves otherwise in a batch than alone. Please report the model: this must not happen silently"
        )


def _agree(model: nn.Module, loss: Loss, few: Batch, clip: Clip, tolerance: float) -> bool:
    # Six units are not worth compiling for.
    eager = Performance(compile=False)
    with warnings.catch_warnings():
        # So few rows hardly fill a vector register. The order of rows is checked again at the size of the training.
        warnings.simplefilter("ignore", RowOrderWarning)
        fast = clipped_sum(model, loss, few, clip, microbatch_size=few.units, performance=eager)
    plain = loop.clipped_sum(model, loss, few, clip)
    apart = sum(float((fast[name] - plain[name]).square().sum()) for name in plain) ** 0.5
    size = sum(float(value.square().sum()) for value in plain.values()) ** 0.5
    return not apart > tolerance * size + 1e-12  # not a number on both sides is the same
