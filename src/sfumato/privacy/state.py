"""Memory that belongs to one record, or to one shard of records."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from weakref import WeakMethod

import numpy as np
import torch
from torch import Tensor

from sfumato.privacy.distributed import World
from sfumato.privacy.ledger import RunRefused

_ON_DEVICE = 1 << 30  # bytes: more than this does not stay on a GPU
_IN_MEMORY = 1 << 28  # bytes: more than this goes to disk
_ROWS = 1 << 16  # rows that processes exchange at once


class PrivateState:
    """A vector for each record (or shard), written only from its own data, draws and what was released.

    A method holds the handle and passes it back to the Curator; the values are never handed out, and they die with
    the run: a large state lies in a file that has no name, so that not even a crash leaves it behind. Nothing is
    released about them, so they cost nothing: record i's memory enters record i's vector alone.
    """

    def __init__(
        self,
        name: str,
        records: int,
        shape: tuple[int, ...],
        fill: float,
        device: torch.device,
        *,
        shards: int | None = None,
        digest: Callable[[], str] | None = None,
    ) -> None:
        self.name, self.shards = name, shards
        # A method keeps the handle; it must not keep the records.
        self._digest = None if digest is None else WeakMethod(digest)
        self.shape, self._fill = shape, fill
        size = (records, math.prod(shape))
        if 4 * math.prod(size) > (_ON_DEVICE if device.type == "cuda" else _IN_MEMORY):
            with tempfile.TemporaryFile() as file:
                self._values = torch.from_numpy(np.memmap(file, dtype=np.float32, mode="w+", shape=size))
            self._values.fill_(fill) if fill else None
        else:
            self._values = torch.full(size, fill, dtype=torch.float32, device=device)
        self._written = torch.zeros(records, dtype=torch.bool)

    def __repr__(self) -> str:
        return f"PrivateState({self.name!r}, shape={self.shape})"

    def _saved(self) -> tuple[Tensor, str]:
        """The values, and a hash of the records they belong to, for a checkpoint."""
        digest = self._digest() if self._digest else None
        return self._values, digest() if digest else ""

    def _restore(self, values: Tensor, digest: str) -> None:
        """Take the values over, unless they are of other records: a vector would then depend on two of them."""
        if values.shape != self._values.shape or digest != self._saved()[1]:
            raise RunRefused(
                f"the collection has changed since {self.name!r} was kept for each of its records. Resume the run with "
                "the collection as it was, or start a new run"
            )
        self._values.copy_(values)

    def _read(self, rows: Tensor, device: torch.device) -> Tensor:
        values = self._values[rows.to(self._values.device)].to(device, torch.get_default_dtype())
        return values.view(len(rows), *self.shape)

    def _unchanged(self, values: Tensor) -> Tensor:
        """Which of these values still are what the state was filled with."""
        return (values.flatten(1) == self._fill).all(1)

    def _write(self, rows: Tensor, values: Tensor) -> None:
        if values.shape != (len(rows), *self.shape):
            raise ValueError(f"state {self.name!r} needs one row of shape {self.shape} for each record")
        self._values[rows.to(self._values.device)] = values.detach().flatten(1).to(self._values)
        self._written[rows.cpu()] = True

    def _gather(self, world: World) -> None:
        """Bring every row that another process has written into this one, for a checkpoint."""
        for start in range(0, len(self._values), _ROWS):
            part, own = (
                self._values[start : start + _ROWS],
                self._written[start : start + _ROWS].to(self._values.device),
            )
            # The bits of the one process that has written a row, and zeros of all others.
            bits = world.all_reduce(torch.where(own[:, None], part.view(torch.int32), 0))
            written = world.all_reduce(own.to(torch.uint8)) > 0
            part.copy_(torch.where(written[:, None], bits.view(torch.float32), part))
