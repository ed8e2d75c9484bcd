"""How far two right answers may lie apart in each arithmetic: for checks that compare one way with another.

The clip does not depend on it: norms are taken from the very numbers that are added (``contribution``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
    before = [(switch, name, getattr(switch, name)) for switch, name, _ in _gpu_switches()]
    for switch, name, exact in _gpu_switches():
        setattr(switch, name, exact)
    try:
        yield
    finally:
        for switch, name, value in before:
            setattr(switch, name, value)


def _gpu_switches() -> list[tuple[Any, str, object]]:
    """Every switch of the precision of float32 products on a GPU: object, attribute, and the value without TF32."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # from torch 2.9 on, where the older switches may refuse to be read
        return [(switch, "fp32_precision", "ieee") for switch in (cudnn.conv, cudnn.rnn, matmul)]  # type: ignore[attr-defined]
    return [(switch, "allow_tf32", False) for switch in (cudnn, matmul)]


def _single(device: torch.device) -> Arithmetic:
    """The arithmetic of float32 products on this device."""
    if device.type == "cuda":
        exact = ("ieee", "none", False)
        rounded = any(getattr(switch, name) not in exact for switch, name, _ in _gpu_switches())
        return TENSOR_FLOAT if rounded else SINGLE
    products = getattr(torch.backends.mkldnn, "matmul", None)
    if products is None:
        return BRAIN if torch.get_float32_matmul_precision() == "medium" else SINGLE
    return BRAIN if products.fp32_precision == "bf16" else SINGLE
