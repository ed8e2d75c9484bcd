"""What a loss is evaluated on: rows of images, labels, keyed draws and the record's own state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sfumato.privacy.randomness import Draws

Loss = Callable[..., Tensor]
"""``loss(model, images, labels, random)`` or, with private state, ``loss(model, images, labels, random, state)``: one
number per row. It is called with one row, and ``torch.func.vmap`` runs it for all."""


@dataclass(frozen=True, eq=False, repr=False)  # no repr: it would show pixels
class Batch:
    """``units * rows_per_unit`` rows, the rows of a unit side by side.

    A unit has several rows when it is a person with several images or when a loss is averaged over several draws.
    ``weights`` ``[units, rows_per_unit]`` says how: a unit's loss is the weighted sum of its rows' losses. Units with
    fewer images are padded with rows of weight 0.
    """

    images: Tensor
    labels: Tensor
    random: Draws
    weights: Tensor
    state: Tensor | None = None
    owners: Tensor | None = None
    """Whose state it is, for writing it back: a number for each record, or for each shard."""

    @property
    def units(self) -> int:
        return self.weights.shape[0]

    @property
    def rows_per_unit(self) -> int:
        return self.weights.shape[1]

    def take(self, start: int, stop: int) -> Batch:
        """The units ``start`` to ``stop``."""
        k = self.rows_per_unit
        rows = slice(start * k, stop * k)
        return self._rows(rows, self.weights[start:stop])

    def select(self, units: Tensor) -> Batch:
        """These units, by index."""
        k = self.rows_per_unit
        offsets = units.new_tensor(range(k))
        return self._rows((units[:, None] * k + offsets).flatten(), self.weights[units])

    def padded(self, units: int) -> Batch:
        """Filled up to this many units with rows of zeros and weight 0, which contribute nothing."""
        missing = units - self.units
        if missing <= 0:
            return self
        rows = missing * self.rows_per_unit

        def fill(tensor: Tensor, count: int) -> Tensor:
            return torch.cat([tensor, tensor.new_zeros(count, *tensor.shape[1:])])

        random = replace(self.random, rows=fill(self.random.rows, rows), draw=fill(self.random.draw, rows))
        state = None if self.state is None else fill(self.state, rows)
        weights = fill(self.weights, missing)
        return Batch(fill(self.images, rows), fill(self.labels, rows), random, weights, state)

    def _rows(self, rows: slice | Tensor, weights: Tensor) -> Batch:
        state = None if self.state is None else self.state[rows]
        return Batch(self.images[rows], self.labels[rows], self.random[rows], weights, state)
