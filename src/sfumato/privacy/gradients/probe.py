"""Checks of a method's loss or function on random images, before a record is touched and at the last step.

``isolation`` keeps rows apart by construction. Here a function that it refuses is refused before the first private row,
with the reason, and the fast way is compared with rows taken one at a time without ``torch.func``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients import loop
from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.engine import clipped_sum
from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.groups import Clip
from sfumato.privacy.gradients.isolation import each_row, each_shard, first_call, one_group
from sfumato.privacy.gradients.mixing import refuse_mixing
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.rounding import arithmetic, without_tf32
from sfumato.privacy.gradients.row_order import RowOrderWarning

PROBED = 6
"""Units of random images."""


@contextmanager
def _explained() -> Iterator[None]:
    """What torch says of a function that it cannot run for one row."""
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the function was refused on random images ({type(error).__name__}: {error}). It sees one row under "
            "torch.func.vmap: it may not turn values into Python numbers, branch on them, index by masks, draw from a "
            "global generator, write to tensors of before or use torch.autograd.grad (use torch.func.grad)"
        ) from None


@without_tf32()
def check(model: nn.Module, loss: Loss, batch: Batch, clip: Clip) -> None:
    """Refuse a model or loss that cannot be run for one row, or whose fast sum is not the plain loop's."""
    refuse_mixing(model)
    few = batch.take(0, min(PROBED, batch.units))
    if few.units == 0:
        return
    with _explained(), warnings.catch_warnings():
        # So few rows hardly fill a vector register. The order of rows is checked again at the size of the training.
        warnings.simplefilter("ignore", RowOrderWarning)
        fast = clipped_sum(model, loss, few, clip, microbatch_size=few.units, performance=Performance(compile=False))
        plain = loop.clipped_sum(model, loss, few, clip)
    used = arithmetic((p.dtype for p in model.parameters()), batch.images.device)
    apart = sum(float((fast[name] - plain[name]).square().sum()) for name in plain) ** 0.5
    size = sum(float(value.square().sum()) for value in plain.values()) ** 0.5
    if apart > max(1e-6, min(0.25, 4096.0 * used.roundoff)) * size + 1e-12:  # not a number on both sides is the same
        raise UnsupportedModel(
            "the fast sum of clipped gradients disagrees with the plain loop on a few records; the loss or a layer "
            "behaves otherwise under torch.func.vmap than alone. Please report the model"
        )


@without_tf32()
def check_rows(function: Callable[..., Tensor], batch: Batch) -> tuple[int, ...]:
    """Refuse a function ``(images, labels, random[, state]) -> [1, ...]`` that cannot be run for one row.

    Returns the shape of one row's result, which is public: it was computed from random images.
    """
    return tuple(_twice(lambda: each_row(function, batch)).shape[1:])


@without_tf32()
def check_shards(function: Callable[..., Tensor], batch: Batch) -> None:
    """Refuse a function of shards that cannot be run for one shard."""
    _twice(lambda: each_shard(function, batch))


@without_tf32()
def check_group(model: nn.Module, loss: Callable[..., Tensor], batch: Batch) -> None:
    """Refuse a group's loss that cannot be run for one group."""
    refuse_mixing(model)
    _twice(lambda: one_group(loss, model, batch.images, batch.labels, batch.random))


def _twice(call: Callable[[], Tensor]) -> Tensor:
    """A first call may fill caches; from the second on Python state must not change."""
    with _explained():
        with first_call():
            before = call()
        after = call()
    if not torch.equal(before.nan_to_num(), after.nan_to_num()):
        raise UnsupportedModel("the function gives other numbers for the same rows the second time")
    return after
