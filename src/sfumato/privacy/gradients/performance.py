"""How the gradients are computed: arithmetic, compilation, memory. None of it can change the mechanism.

Every unit's vector is measured, clipped and rounded as it was computed (``sums.py``), whatever arithmetic produced it.
A coarser or faster arithmetic changes the vectors a little, and never how far one unit moves the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_GIB = 1 << 30
_COMPILED_PASSES = 1000  # of a batch; compiling takes a minute or two


@dataclass(frozen=True)
class Performance:
    """Public settings of the gradient engine.

    Args:
        dtype: arithmetic of the matrix products; ``torch.bfloat16`` runs the loss under autocast.
        compile: compile the microbatch; pays on a GPU in a training of minutes. Where compiling fails, microbatches
            stay eager.
        memory: bytes that a microbatch may take. None: a quarter of the device's memory, at most 1 GiB on a CPU.
    """

    dtype: torch.dtype = torch.float32
    compile: bool = False
    memory: int | None = None

    @classmethod
    def for_training(cls, device: torch.device, *, bfloat16: bool, passes: int) -> Performance:
        """On a GPU bfloat16, compiled where a record is expected to pass often enough to pay for it.

        ``passes`` are steps times draws. On a CPU, where all of this is slower, float32 as it is.
        """
        if device.type != "cuda" or not bfloat16:
            return cls()
        return cls(dtype=torch.bfloat16, compile=passes >= _COMPILED_PASSES)

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"the arithmetic is torch.float32 or torch.bfloat16, not {self.dtype}")
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"the memory of a microbatch is a positive number of bytes, not {self.memory}")

    def bytes(self, device: torch.device) -> int:
        """Bytes that a microbatch may take on this device: a property of the machine, not of the data."""
        if self.memory is not None:
            return self.memory
        if device.type == "cuda":
            return int(torch.cuda.get_device_properties(device).total_memory // 4)
        return _GIB

    def usual_units(self, device: torch.device) -> float:
        """The size of batch to prepare for where no public number says it."""
        return 4096.0 if device.type == "cuda" else 64.0

    def most_rows(self, device: torch.device) -> int:
        """Rows beyond which a larger microbatch is no faster."""
        return 16384 if device.type == "cuda" else 256


def units_multiple(device: torch.device, rows_per_unit: int) -> int:
    """Units in multiples of which a microbatch is best cut.

    On a CPU the last numbers of a tensor, and of every thread's share of it, are computed by other instructions than
    the rest, 32 at a time. Where rows come in such multiples there is no such remainder.
    """
    return 1 if device.type == "cuda" else math.lcm(32 * torch.get_num_threads(), rows_per_unit) // rows_per_unit


@contextmanager
def deterministic(device: torch.device, performance: Performance) -> Iterator[None]:
    """Deterministic kernels chosen without timing, in the arithmetic that was asked for."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.deterministic, matmul.allow_bf16_reduced_precision_reduction
    cudnn.benchmark, cudnn.deterministic = False, True
    # Partial sums of split inner dimensions are kept in float32.
    matmul.allow_bf16_reduced_precision_reduction = False
    enabled = performance.dtype is torch.bfloat16 or torch.is_autocast_enabled(device.type)
    dtype = torch.bfloat16 if performance.dtype is torch.bfloat16 else torch.get_autocast_dtype(device.type)
    try:
        with torch.autocast(device.type, dtype=dtype, enabled=enabled):
            yield
    finally:
        cudnn.benchmark, cudnn.deterministic, matmul.allow_bf16_reduced_precision_reduction = before


def roundoff(dtypes: Iterable[torch.dtype], device: torch.device) -> float:
    """Of one operation in the coarsest arithmetic in use: how far two right answers may lie apart."""
    used = set(dtypes)
    if torch.is_autocast_enabled(device.type):
        used.add(torch.get_autocast_dtype(device.type))
    if torch.bfloat16 in used or (torch.float32 in used and device.type != "cuda" and _bfloat16_products()):
        return 2.0**-7
    if torch.float16 in used:
        return 2.0**-9
    if torch.float32 in used:
        exact = ("ieee", "none", False)
        rounded = device.type == "cuda" and any(getattr(one, name) not in exact for one, name, _ in _gpu_switches())
        return 2.0**-9 if rounded else 2.0**-23
    return 2.0**-50


def tolerance(dtypes: Iterable[torch.dtype], device: torch.device) -> float:
    """Relative, of two ways to the same gradients, where a wrong one is off by its own size."""
    return max(1e-6, min(0.25, 4096.0 * roundoff(dtypes, device)))


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


def _bfloat16_products() -> bool:
    """Whether a CPU rounds the operands of float32 products to bfloat16."""
    products = getattr(torch.backends.mkldnn, "matmul", None)
    if products is None:
        return torch.get_float32_matmul_precision() == "medium"
    return bool(products.fp32_precision == "bf16")
