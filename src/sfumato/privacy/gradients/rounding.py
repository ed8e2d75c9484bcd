"""What rounding can add to a clipped vector, for each arithmetic, and the room the clip leaves for it.

A row's gradient of a weight is a sum over positions, G = Σ_t b_t a_tᵀ. Rounding the operands moves it by at most
``roundoff · Σ_t |b_t| |a_t|``, which may be far more than ``roundoff · |G|`` when the positions cancel. So a norm comes
with its *spread* Σ_t |b_t| |a_t|, and the clip aims at ``|G| (1 + margin) + roundoff (spread − |G|)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Arithmetic:
    """``margin``: relative room below the clip. ``roundoff``: room for each unit of spread beyond the norm."""

    name: str
    margin: float
    roundoff: float

    def safe(self, norm: Tensor, spread: Tensor) -> Tensor:
        """An upper bound for the norm of what the weighted sum adds up before scaling."""
        return norm * (1.0 + self.margin) + self.roundoff * (spread - norm).clamp(min=0.0)


DOUBLE = Arithmetic("float64", 1e-6, 2.0**-50)
SINGLE = Arithmetic("float32", 1e-6, 2.0**-23)
TENSOR_FLOAT = Arithmetic("tf32", 2.0**-9, 2.0**-9)
HALF = Arithmetic("float16", 2.0**-9, 2.0**-9)
BRAIN = Arithmetic("bfloat16", 2.0**-7, 2.0**-7)


def arithmetic(dtypes: Iterable[torch.dtype], device: torch.device) -> Arithmetic:
    """The coarsest arithmetic in use."""
    used = set(dtypes)
    if torch.bfloat16 in used:
        return BRAIN
    if torch.float16 in used:
        return HALF
    if torch.float32 in used:
        return _single(device)
    return DOUBLE


def _single(device: torch.device) -> Arithmetic:
    if torch.get_float32_matmul_precision() == "medium":
        return BRAIN
    if device.type != "cuda":
        return SINGLE
    try:
        rounded = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:
        # torch refuses the answer when its old and new switches were mixed: take the coarser one.
        rounded = True
    return TENSOR_FLOAT if rounded else SINGLE


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums are formed in: operands in half precision are summed in float32, which holds them exactly."""
    return torch.float64 if dtype == torch.float64 else torch.float32
