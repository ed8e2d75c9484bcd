"""Memory that belongs to one record."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


class PrivateState:
    """A vector for each record, written only from that record's own data, draws and what was released.

    A method holds the handle and passes it back to the Curator; the values are never handed out, and they die with
    the run. Nothing is released about them, so they cost nothing: record i's memory enters record i's vector alone.
    """

    def __init__(self, name: str, records: int, shape: tuple[int, ...], fill: float) -> None:
        self.name = name
        self.shape = shape
        self._values = np.full((records, math.prod(shape)), fill, dtype=np.float32)

    def __repr__(self) -> str:
        return f"PrivateState({self.name!r}, shape={self.shape})"

    def _read(self, rows: np.ndarray, device: torch.device) -> Tensor:
        values = torch.from_numpy(self._values[rows]).to(device, torch.get_default_dtype())
        return values.view(len(rows), *self.shape)

    def _write(self, rows: np.ndarray, values: Tensor) -> None:
        if values.shape != (len(rows), *self.shape):
            raise ValueError(f"state {self.name!r} needs one row of shape {self.shape} for each record")
        self._values[rows] = values.detach().flatten(1).cpu().to(torch.float32).numpy()
