"""How far two right answers may lie apart in each arithmetic: for checks that compare one way with another.

The clip does not depend on it: norms are taken from the very numbers that are added (``contribution``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Arithmetic:
    """``roundoff`` of one operation; relative ``tolerance`` of a gradient, where a wrong one is off by its own size."""

    name: str
    roundoff: float
    tolerance: float


DOUBLE = Arithmetic("float64", 2.0**-50, 1e-6)
SINGLE = Arithmetic("float32", 2.0**-23, 5e-3)
TENSOR_FLOAT = Arithmetic("tf32", 2.0**-9, 5e-2)
HALF = Arithmetic("float16", 2.0**-9, 5e-2)
BRAIN = Arithmetic("bfloat16", 2.0**-7, 0.25)


def arithmetic(dtypes: Iterable[torch.dtype], device: torch.device) -> Arithmetic:
    """The coarsest arithmetic in use."""
    used = set(dtypes)
    if torch.is_autocast_enabled(device.type):
        used.add(torch.get_autocast_dtype(device.type))
    if torch.bfloat16 in used:
        return BRAIN
    if torch.float16 in used:
        return HALF
    if torch.float32 in used:
        return _single(device)
    return DOUBLE


@contextmanager
def without_tf32() -> Iterator[None]:
    """Products of float32 numbers in float32 on a GPU, where TF32 would hide what a check looks for."""
    convolutions, products = True, "highest"
    with suppress(RuntimeError):  # torch refuses the answer when its old and new switches were mixed
        convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    if products != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        if products != "highest":
            torch.set_float32_matmul_precision(products)


def _single(device: torch.device) -> Arithmetic:
    try:
        if torch.get_float32_matmul_precision() == "medium":
            return BRAIN
        if device.type != "cuda":
            return SINGLE
        rounded = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:
        # torch refuses the answer when its old and new switches were mixed: take the coarser one.
        rounded = True
    return TENSOR_FLOAT if rounded else SINGLE
