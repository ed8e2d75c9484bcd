"""Functions of rows and of shards. To the engine a shard is a unit with many rows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.gradients.errors import UnsupportedModel


def on_rows(function: Callable[..., Tensor], batch: Batch) -> Tensor:
    """What the function gives for the rows."""
    return batch.results(function)


def on_shards(function: Callable[..., Tensor], batch: Batch) -> Tensor:
    """The new state of each shard, from its old state and all of its rows."""
    size = (batch.units, batch.rows_per_unit)
    if batch.state is None:
        raise UnsupportedModel("a function of shards updates their state, and no state was given")
    memory = batch.state.unflatten(0, size)[:, 0]
    if not batch.units:
        return memory
    images, labels = batch.images.unflatten(0, size), batch.labels.view(size)
    found = function(images, labels, batch.weights, batch.random, memory)
    if found.shape != memory.shape:
        raise UnsupportedModel("the function must give each shard a state of the shape it had")
    return found
