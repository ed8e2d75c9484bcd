"""What one parameter's use contributes to each unit's gradient: its norm, and the exact sum of the clipped vectors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from sfumato.privacy.gradients.fixed_point import EXACT_UNITS

BLOCK = 1 << 18  # numbers worked on at a time: the buffers stay in a CPU's cache


class Contribution(ABC):
    """One parameter's part of every unit's gradient.

    ``relative`` and ``absolute`` bound what rounding to the grid adds to a unit's vector: ``relative`` times its
    spread, plus ``absolute`` grid steps (see ``fixed_point``).
    """

    relative: float
    absolute: float
    bytes_per_unit: float
    """Memory that a unit takes while it is measured and added."""

    @abstractmethod
    def norms(self) -> tuple[Tensor, Tensor]:
        """Each unit's norm, and its spread: a bound on the norm before terms cancel. Both are float64 ``[units]``."""

    @abstractmethod
    def gradients(self) -> Tensor:
        """Each unit's gradient, ``[units, numel]``, in the parameter's own order."""

    @abstractmethod
    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        """``Σ_u round(factor_u · gradient_u / spacing)`` int64 ``[numel]``.

        A unit with factor 0 adds nothing, even if its gradient is not finite.
        """


class PerExample(Contribution):
    """Gradients that are held whole, ``[units, numel]``: the very numbers that are measured are scaled and added."""

    relative = 0.0

    def __init__(self, gradient: Tensor) -> None:
        self.gradient = gradient
        self.absolute = math.sqrt(gradient.shape[1]) / 2.0
        # Where the work is not done in blocks, float32 and float64 copies of the gradients are alive at once.
        copies = 0 if in_blocks(gradient) else 12
        self.bytes_per_unit = float(gradient.shape[1] * (gradient.element_size() + copies))

    def norms(self) -> tuple[Tensor, Tensor]:
        norm = row_norms(self.gradient)
        return norm, norm

    def gradients(self) -> Tensor:
        return self.gradient

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        dtype = working(self.gradient.dtype)
        scale = (factor / spacing).to(dtype)[:, None]
        if in_blocks(self.gradient):
            return self._sums_in_blocks(scale)
        scaled = torch.round(self.gradient.to(dtype) * scale)
        whole = torch.where(factor[:, None] > 0, scaled, 0.0)
        return add([part.sum(0, dtype=torch.float64) for part in whole.split(EXACT_UNITS)])

    def _sums_in_blocks(self, scale: Tensor) -> Tensor:
        """The same numbers, a block of columns at a time in buffers that stay in a CPU's cache."""
        units, numel = self.gradient.shape
        most = min(units, EXACT_UNITS)
        width = min(numel, -(-BLOCK // most))
        scaled, whole = scale.new_empty(most, width), scale.new_empty(most, width, dtype=torch.float64)
        part, total = whole.new_empty(numel), torch.zeros(numel, dtype=torch.int64)
        unusable = (scale[:, 0] == 0).nonzero()[:, 0]  # 0 times a number that is not finite is not 0
        for first in range(0, units, most):
            rows = slice(first, min(units, first + most))
            skipped = unusable[(unusable >= rows.start) & (unusable < rows.stop)] - rows.start
            for start in range(0, numel, width):
                columns = slice(start, min(numel, start + width))
                shape = (slice(rows.stop - rows.start), slice(columns.stop - start))
                torch.mul(self.gradient[rows, columns], scale[rows], out=scaled[shape])
                scaled[shape].index_fill_(0, skipped, 0.0)
                whole[shape].copy_(scaled[shape].round_())
                torch.sum(whole[shape], 0, out=part[columns])
            total.add_(part.to(torch.int64))
        return total


def row_norms(rows: Tensor) -> Tensor:
    """The norm of each row of a matrix, float64."""
    if not in_blocks(rows):
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    # Converted first, a few rows at a time: a norm that converts while it adds is not vectorised. Pieces of equal
    # size, because a reduction of another shape may be rounded otherwise.
    size = largest_divisor(len(rows), max(1, BLOCK // max(1, rows.shape[1])))
    return torch.cat([torch.linalg.vector_norm(few.double(), dim=1) for few in rows.split(size)])


def in_blocks(tensor: Tensor) -> bool:
    """On a CPU memory is the bottleneck; a GPU prefers few kernels, and a compiler makes its own blocks."""
    return tensor.device.type == "cpu" and not is_fake(tensor)


def add(parts: list[Tensor]) -> Tensor:
    """The sum of float64 tensors of whole numbers, in int64."""
    total = parts[0].to(torch.int64)
    for part in parts[1:]:
        total = total + part.to(torch.int64)
    return total


def rows_to_units(gradient: Tensor, *, units: int) -> PerExample:
    """A gradient for each row, ``[rows, ...]``: the rows of a unit are added."""
    rows = gradient.reshape(units, gradient.shape[0] // units, -1)
    return PerExample(rows[:, 0] if rows.shape[1] == 1 else rows.sum(1, dtype=working(rows.dtype)))


def merge(uses: list[Contribution]) -> Contribution:
    """A parameter used more than once: its gradients are added before the norm, so cross terms count."""
    if len(uses) == 1:
        return uses[0]
    total = uses[0].gradients().to(working(uses[0].gradients().dtype))
    for use in uses[1:]:
        total = total + use.gradients()
    return PerExample(total)


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums are formed in: operands in half precision are summed in float32, which holds them exactly."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor that is not above ``most``."""
    return next(size for size in range(min(number, most), 0, -1) if number % size == 0)
