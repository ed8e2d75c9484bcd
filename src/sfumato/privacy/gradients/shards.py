"""Shards: units that speak with one clipped voice. To the engine a shard is a unit with many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from torch import Tensor

from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.gradients.errors import UnsupportedModel


class Partition:
    """Which units each shard has, from each unit's shard (-1: in none)."""

    def __init__(self, shard_of: np.ndarray, shards: int) -> None:
        self._order = np.argsort(shard_of, kind="stable")
        self._starts = np.searchsorted(shard_of[self._order], np.arange(shards + 1))

    def packs(self, shards: np.ndarray, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Those of ``shards`` that have units, about ``rows`` rows at a time, the largest first: shards of like size
        go together. Their numbers, ``[shards, n]`` units, and each unit's share, which fills up with 0.

        A shard without units has no vector. If no shard has any, one pack without rows comes.
        """
        sizes = self._starts[shards + 1] - self._starts[shards]
        largest_first = np.argsort(-sizes, kind="stable")
        shards, sizes = shards[largest_first], sizes[largest_first]
        present = int((sizes > 0).sum())
        start = 0
        while start == 0 or start < present:
            width = int(sizes[start]) if start < present else 1
            stop = min(present, start + max(1, rows // width))
            own = sizes[start:stop, None]
            place = np.arange(width)[None, :]
            # A filler repeats the shard's own first unit, so that it cannot carry another shard's data.
            units = self._order[self._starts[shards[start:stop]][:, None] + np.where(place < own, place, 0)]
            yield shards[start:stop], units, (place < own) / np.maximum(own, 1)
            start = max(stop, 1)


def on_shards(function: Callable[..., Tensor], batch: Batch) -> Tensor:
    """What the function makes of each shard's memory, given all of the shard's rows."""
    size = (batch.units, batch.rows_per_unit)
    if batch.state is None:
        raise UnsupportedModel("shards are visited to write their memory, and there is none")
    memory = batch.state.unflatten(0, size)[:, 0]
    if not batch.units:
        return memory
    images, labels = batch.images.unflatten(0, size), batch.labels.view(size)
    found = function(images, labels, batch.weights, batch.random, memory)
    if found.shape != memory.shape:
        raise UnsupportedModel("the function must give each shard a memory of the shape it had")
    return found
