"""What the engine checks before it relies on a faster way, and the settings that make kernels repeatable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from sfumato.privacy.gradients.contribution import Contribution
from sfumato.privacy.gradients.microbatches import Microbatch
from sfumato.privacy.gradients.per_class import Part
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.rounding import arithmetic
from sfumato.privacy.gradients.task import trainable_parameters

Run = Callable[[Microbatch], dict[str, Tensor]]
"""A microbatch → parameter name → whole numbers of grid steps."""


def few_units(part: Part, units: int, start: int = 0) -> Part:
    """A few units."""
    return replace(part, batch=part.batch.take(start, min(part.batch.units, start + units)))


def units_multiple(device: torch.device, rows_per_unit: int) -> int:
    """Units in multiples of which a microbatch is best cut.

    On a CPU the last numbers of a tensor, and of every thread's share of it, are computed by other instructions than
    the rest, 32 at a time. Where rows come in such multiples there is no such remainder.
    """
    return 1 if device.type == "cuda" else math.lcm(32 * torch.get_num_threads(), rows_per_unit) // rows_per_unit


def gradients_agree(fast: dict[str, Contribution], loop: dict[str, Contribution], part: Part) -> bool | None:
    """Whether every unit has the same gradient and norm both ways, up to rounding; None if none is finite and not 0."""
    used = arithmetic((p.dtype for p in trainable_parameters(part.model).values()), part.batch.images.device)
    exact = {name: contribution.gradients() for name, contribution in loop.items()}
    distance = torch.stack(
        [(fast[n].gradients().double() - g if n in fast else g).square().sum(1) for n, g in exact.items()]
    )
    expected = torch.stack([g.square().sum(1) for g in exact.values()]).sum(0).sqrt()
    squares = [contribution.norms()[0].square() for contribution in fast.values()]
    norm = torch.stack(squares).sum(0).sqrt() if squares else torch.zeros_like(expected)
    # A gradient that vanishes but for rounding is as large as the rounding of the others.
    largest = torch.nan_to_num(expected, nan=0.0, posinf=0.0).max()
    room = used.tolerance * expected + 256.0 * used.roundoff * largest
    near = (distance.sum(0).sqrt() <= room) & ((norm - expected).abs() <= room)
    finite = torch.isfinite(norm) & torch.isfinite(expected)
    if not bool((near | ~finite).all()):
        return False
    return True if bool((finite & (expected > 0)).any()) else None


def sums_agree(found: dict[str, Tensor], expected: dict[str, Tensor], part: Part) -> bool:
    """Whether two sums of the same microbatch differ by rounding alone."""
    used = arithmetic((p.dtype for p in trainable_parameters(part.model).values()), part.batch.images.device)
    if found.keys() != expected.keys():
        return False
    distance = torch.stack([(found[name] - whole).double().norm() for name, whole in expected.items()]).norm()
    return bool(distance <= used.tolerance * torch.stack([w.double().norm() for w in expected.values()]).norm())


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
