"""Start-up checks: no row may see another, and the fast way must agree with the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients import loop
from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.engine import clipped_sum
from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.groups import Clip
from sfumato.privacy.gradients.mixing import refuse_mixing
from sfumato.privacy.gradients.per_class import PerClass, losses
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.rounding import arithmetic
from sfumato.privacy.gradients.shards import on_shards

PROBED = 6
"""Units in a probe: few, because a leak through a mean over the batch shrinks with its size."""


def check(model: nn.Module, loss: Loss, batch: Batch, clip: Clip) -> None:
    """Refuse a model or loss that breaks the contract. Costs a few small passes; releases nothing.

    1. No module mixes the batch.
    2. The same rows give the same losses twice: no draw outside ``random``.
    3. Changing a unit's images, labels, draws or state moves no other unit's loss.
    4. A unit alone has the loss it has among others.
    5. The sum of clipped gradients is the plain loop's.
    """
    refuse_mixing(model)
    few = batch.take(0, min(PROBED, batch.units))
    if few.units == 0:
        return
    used = arithmetic((p.dtype for p in model.parameters()), batch.images.device)
    with torch.no_grad():
        before = _unit_losses(model, loss, few)
        # The largest finite loss sets the scale of rounding: every row went through sums of that size.
        scale = torch.nan_to_num(before, nan=0.0, posinf=0.0, neginf=0.0).abs().max().clamp(min=1e-12)
        exact, loose = 256.0 * max(used.roundoff, 2.0**-50) * scale, 4096.0 * max(used.roundoff, 2.0**-50) * scale
        if not _same(before, _unit_losses(model, loss, few), exact):
            raise UnsupportedModel(
                "the loss gives other numbers for the same rows the second time: it draws from a generator other than "
                "`random` or changes the model. Take every draw from `random`"
            )
        for unit in sorted({0, few.units // 2, few.units - 1}):
            others = torch.arange(few.units, device=before.device) != unit
            after = _unit_losses(model, loss, disturbed(model, few, unit))
            if not _same(before[others], after[others], exact):
                raise UnsupportedModel(
                    "changing one record moved another record's loss: the loss or the model mixes the rows of a batch "
                    "(a mean over the batch, a rank, attention across rows, a running statistic). One record could "
                    "then move every gradient. Let each row's loss depend on its own row only"
                )
        alone = torch.cat([_unit_losses(model, loss, few.take(i, i + 1)) for i in range(few.units)])
        if not _same(before, alone, loose):
            raise UnsupportedModel(
                "a record's loss changes with the number of rows in the batch, which is private. Do not divide by the "
                "batch size or by len(images); return one number for each row"
            )
    _compare(model, loss, few, clip, tolerance=max(1e-6, min(0.25, 4096.0 * used.roundoff)))


def check_rows(function: Callable[..., Tensor], batch: Batch) -> None:
    """Refuse a function ``(images, labels, random[, state]) -> [rows, ...]`` in which one row sees another."""

    def values(part: Batch) -> Tensor:
        arguments = (part.images, part.labels, part.random)
        found = function(*arguments) if part.state is None else function(*arguments, part.state)
        if found.shape[:1] != part.labels.shape:
            raise UnsupportedModel("the function must give one vector for each of the rows it gets")
        return found.detach().double().flatten(1)

    before = values(batch)
    room = 4096.0 * torch.finfo(batch.images.dtype).eps * torch.nan_to_num(before).abs().max().clamp(min=1e-12)
    for unit in sorted({0, batch.units - 1}):
        others = torch.arange(len(batch.labels), device=before.device) // batch.rows_per_unit != unit
        if not _same(before[others], values(disturbed(None, batch, unit))[others], room):
            raise UnsupportedModel(
                "changing one record moved what another record contributes: the function mixes the rows of a batch. "
                "Let each row's vector depend on its own row only"
            )


def check_shards(function: Callable[..., Tensor], batch: Batch) -> None:
    """Refuse a function of shards in which one shard sees another."""
    before = on_shards(function, batch).detach().double().flatten(1)
    room = 4096.0 * torch.finfo(batch.images.dtype).eps * torch.nan_to_num(before).abs().max().clamp(min=1e-12)
    for shard in sorted({0, batch.units - 1}):
        others = torch.arange(batch.units, device=before.device) != shard
        after = on_shards(function, disturbed(None, batch, shard)).detach().double().flatten(1)
        if not _same(before[others], after[others], room):
            raise UnsupportedModel(
                "changing one shard moved what another one remembers: the function mixes shards. "
                "Let each shard's memory depend on its own rows only"
            )


def _unit_losses(model: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    with torch.enable_grad():
        # A loss may differentiate the network, so gradients stay on.
        rows = losses(model, loss, batch).detach()
    if rows.shape != batch.weights.flatten().shape:
        raise UnsupportedModel("the loss must return one number for each row: reduce over pixels, never over the batch")
    weights = batch.weights.flatten()
    return torch.where(weights > 0, rows.double() * weights, 0.0).view(batch.units, -1).sum(1)


def _same(one: Tensor, other: Tensor, room: Tensor) -> bool:
    both_odd = ~torch.isfinite(one) & ~torch.isfinite(other)
    return bool((both_odd | ((one - other).abs() <= room)).all())


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
    fast, plain = (
        clipped_sum(model, loss, few, clip, microbatch_size=few.units, performance=eager),
        loop.clipped_sum(model, loss, few, clip),
    )
    apart = sum(float((fast[name] - plain[name]).square().sum()) for name in plain) ** 0.5
    size = sum(float(value.square().sum()) for value in plain.values()) ** 0.5
    return not apart > tolerance * size + 1e-12  # not a number on both sides is the same
