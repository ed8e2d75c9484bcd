"""Clip, round, add: what one unit may contribute to a sum is decided here and nowhere else.

Whatever made a unit's vector is not trusted for its size: the numbers that are measured here are the numbers that are
scaled, rounded and added.

For a clip norm C the grid has the spacing g = 2^-44 · 2^⌊log2 C⌋, so a coordinate of a clipped vector is a whole number
below 2^45. Sums of up to 256 such numbers are exact in float64, in any order and on any device, and further sums are
kept in int64. Hence the total is the same whatever the order of the units and however they are packed, and removing a
unit moves it by that unit's vector and nothing else. Rounding moves a vector by at most ``absolute`` grid steps and
``relative`` times its spread (``Contribution``). The clip aims lower by both, so the rounded vector has norm at most C.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

if TYPE_CHECKING:
    from sfumato.privacy.gradients.batch import Batch, Groups, Microbatch

MARGIN = 1e-6
"""The share of the clip norm left free for the float32 product of vector and factor (2^-24 relative) and the last
rounding of the total to float64 (2^-53 of a sum of n vectors)."""
DOUBLE_MARGIN = 1e-9
"""The same where vectors are float64: for the rounding of the division."""

FRACTION_BITS = 44
EXACT_UNITS = 256
"""Units whose vectors float64 adds exactly: 2^45 · 2^8 = 2^53."""
MOST_SPREAD = 16.0
"""A unit's spread after the clip, in clip norms: it bounds the terms of a unit before they cancel."""

_CARRY_AFTER = 1 << 17  # units whose sum int64 certainly holds: 2^45 · 2^17 < 2^63
_LIMB = 32  # bits of the low part of a total
_SCALE = 2.0 ** (FRACTION_BITS // 2)
_CANCELLING_UNITS = int(EXACT_UNITS / MOST_SPREAD)
_BLOCK = 1 << 18  # numbers worked on at a time: the buffers stay in a CPU's cache
_SMALL = 1 << 12  # numbers of a gradient up to which copying it beside others is faster than operations of its own
_MOMENT_BITS = 20
_MOST_MOMENT_UNITS = 1 << 11


def grid_spacing(clip_norm: float) -> float:
    """The spacing of the grid for vectors of this norm: a power of two."""
    if not 2.0**-60 < clip_norm < 2.0**60:
        raise ValueError(f"the clip norm must lie between 2^-60 and 2^60, not {clip_norm}")
    return 2.0 ** (math.floor(math.log2(clip_norm)) - FRACTION_BITS)


def clip_factors(
    norm: Tensor,
    clip_norm: float,
    *,
    slack: float,
    spread: Tensor | None = None,
    rounding: Tensor | float = 0.0,
    margin: float = MARGIN,
) -> Tensor:
    """What each unit's vector is multiplied with, float64 ``[units]``; 0 for a unit whose norm is not finite.

    Guarantee. With factor f, f · (norm + rounding) + slack ≤ clip_norm · (1 − margin), and f · spread ≤ 16 · clip_norm.
    """
    target = clip_norm * (1.0 - margin) - slack
    if target <= 0:
        raise ValueError("the vectors are too long for this grid")
    factor = (target / (norm + rounding).clamp(min=1e-300)).clamp(max=1.0)
    if spread is not None:
        factor = torch.minimum(factor, MOST_SPREAD * clip_norm / spread.clamp(min=1e-300))
    # NaN compares false; a norm beyond float32 means that a gradient overflowed.
    return torch.where(norm <= torch.finfo(torch.float32).max, factor, 0.0)


class FixedPointSum:
    """The running total, name → whole numbers of grid steps.

    A total of many units does not fit into 64 bits. It is kept as ``high · 2^32 + low``, so that no number of units, in
    no number of processes, needs rounding before the last conversion to float64.

    Guarantee. The total is the exact sum of all that was added, in any order, and is rounded once, in ``values``.
    """

    def __init__(self, spacings: Mapping[str, float]) -> None:
        self._spacings = spacings
        self._low: dict[str, Tensor] = {}
        self._high: dict[str, Tensor] = {}
        self._units = 0

    def add(self, sums: Mapping[str, Tensor], units: int) -> None:
        """Add int64 vectors of grid steps that came from this many units."""
        if self._units + units > _CARRY_AFTER:
            self._carry()
        self._units += units
        add_to(self._low, sums)

    def merge(self, other: FixedPointSum) -> None:
        """Add another sum on the same grids."""
        self.add(other._low, other._units)
        add_to(self._high, other._high)

    def limbs(self, sizes: Mapping[str, int], device: torch.device) -> Tensor:
        """The whole total, int64 ``[2, n]``: high and low parts, of the names of these sizes in this order."""
        self._carry()
        parts = [torch.zeros(2, 0, dtype=torch.int64, device=device)]
        for name, size in sizes.items():
            zero = torch.zeros(size, dtype=torch.int64, device=device)
            parts.append(torch.stack([self._high.get(name, zero).flatten(), self._low.get(name, zero).flatten()]))
        return torch.cat(parts, 1)

    def values(self, limbs: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Name → the total in float64, flat, from the sum of several processes' ``limbs``.

        One rounding: both products are exact, and only their sum is rounded.
        """
        high, low = limbs[0] + (limbs[1] >> _LIMB), limbs[1] & (2**_LIMB - 1)
        total = high.double() * 2.0**_LIMB + low.double()
        parts = total.split(list(sizes.values()))
        return {name: part * self._spacings[name] for name, part in zip(sizes, parts, strict=True)}

    def _carry(self) -> None:
        """Leave less than 2^32 in every low part, which is no more than what one unit adds."""
        add_to(self._high, {name: low >> _LIMB for name, low in self._low.items()})
        self._low = {name: low & (2**_LIMB - 1) for name, low in self._low.items()}
        self._units = 1


def add_to(total: dict[str, Tensor], more: Mapping[str, Tensor]) -> None:
    """Add by name, in place of the dictionary."""
    for name, value in more.items():
        total[name] = total[name] + value if name in total else value


class Contribution(ABC):
    """One parameter's part of every unit's gradient, as it is held: whole, or as the factors of a product.

    ``relative`` and ``absolute`` bound what rounding to the grid adds to a unit's vector: ``relative`` times its
    spread, plus ``absolute`` grid steps.
    """

    relative: float = 0.0
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
    """Gradients that are held whole, ``[units, numel]``.

    Guarantee. ``norms`` measures the very numbers that ``sums`` scales, rounds and adds; rounding moves a vector by
    at most √numel / 2 steps.
    """

    def __init__(self, gradient: Tensor) -> None:
        self.gradient = gradient
        self.absolute = math.sqrt(gradient.shape[1]) / 2.0
        # Where the work is not done in blocks, float32 and float64 copies of the gradients are alive at once.
        copies = 0 if _in_blocks(gradient) else 12
        self.bytes_per_unit = float(gradient.shape[1] * (gradient.element_size() + copies))

    def norms(self) -> tuple[Tensor, Tensor]:
        norm = row_norms(self.gradient)
        return norm, norm

    def gradients(self) -> Tensor:
        return self.gradient

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        dtype = working(self.gradient.dtype)
        scale = (factor / spacing).to(dtype)[:, None]
        if _in_blocks(self.gradient):
            return self._sums_in_blocks(scale)
        scaled = torch.round(self.gradient.to(dtype) * scale)
        whole = torch.where(factor[:, None] > 0, scaled, 0.0)
        return _whole_sum([part.sum(0, dtype=torch.float64) for part in whole.split(EXACT_UNITS)])

    def _sums_in_blocks(self, scale: Tensor) -> Tensor:
        """The same numbers, a block of columns at a time in buffers that stay in a CPU's cache."""
        units, numel = self.gradient.shape
        most = min(units, EXACT_UNITS)
        width = min(numel, -(-_BLOCK // most))
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


class GhostClipping(Contribution):
    """G = Σ_t b_t a_tᵀ over a unit's positions, held as ``a`` ``[units, positions, inner]`` and ``b`` ``[…, outer]``.

    The norm of G is |a| |b| for one position and follows from Gram matrices for several, |G|² = Σ_{t,s} ⟨a_t, a_s⟩
    ⟨b_t, b_s⟩, in float64, because the terms cancel: float32 is 3 % short when activations have mean 1e3 and
    deviation 1. The sum over units is one product (Bu et al., 2023), exact because it is one of whole numbers in
    float64: a is scaled to length 2^22 and rounded, f·b takes the length of a and is rounded to the matching grid.

    Guarantee. The rounded product differs from f · G by at most ``relative`` · f · spread + ``absolute`` grid steps.
    """

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b
        inner, outer, positions = a.shape[2], b.shape[2], a.shape[1]
        self._length = _lengths(a)
        # |round(a') - a'| ≤ √inner / 2 where |a'| = 2^22; the other rounding is √outer / 2 steps times |round(a')|.
        self.relative = math.sqrt(inner) / (2.0 * _SCALE) * (1.0 + 1e-6)
        self.absolute = positions * math.sqrt(outer) / 2.0 * (_SCALE + math.sqrt(inner))
        self.bytes_per_unit = 16.0 * positions * (inner + outer)
        # Terms of one position are as small as the vector; terms of several may cancel, and fewer units fit.
        self._units = EXACT_UNITS if positions == 1 else _CANCELLING_UNITS
        self._block = max(1, _BLOCK // (positions * (inner + outer)))

    def norms(self) -> tuple[Tensor, Tensor]:
        spread = (self._length * _lengths(self.b)).sum(1)
        if self.a.shape[1] == 1:
            return spread, spread
        # Blocks of equal size: a product of another shape may be rounded otherwise.
        size = largest_divisor(len(self.a), self._block) if _in_blocks(self.a) else len(self.a)
        squares = [_gram_product(a, b) for a, b in zip(self.a.split(size), self.b.split(size), strict=True)]
        # Rounding may leave a vanishing square a hair below zero; NaN must stay NaN, so no clamp to a number.
        return torch.cat(squares).abs().sqrt(), spread

    def gradients(self) -> Tensor:
        return outer_products(self.a, self.b)

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        # On a CPU a few units at a time: the copies in float64 stay in the cache.
        block = max(self._block, _CANCELLING_UNITS) if _in_blocks(self.a) else self._units
        parts = []
        for exact in zip(*(v.split(self._units) for v in (self.a, self.b, self._length, factor)), strict=True):
            part = None
            for few in zip(*(value.split(block) for value in exact), strict=True):
                left, right = (value.flatten(0, 1) for value in _whole_numbers(*few, spacing=spacing))
                part = right.t() @ left if part is None else part.addmm_(right.t(), left)
            assert part is not None
            parts.append(part.flatten())
        return _whole_sum(parts)


class Lookup(Contribution):
    """One look-up for each unit: the gradient is that of one entry of the table, and the others are zero.

    Guarantee. As ``PerExample``, of the vector ``gradient`` ``[units, width]`` at row ``index`` of the table.
    """

    def __init__(self, index: Tensor, gradient: Tensor, *, table: tuple[int, int]) -> None:
        self.index, self.gradient, self.table = index, gradient, table
        self.absolute = math.sqrt(table[1]) / 2.0
        self.bytes_per_unit = 24.0 * table[1]

    def norms(self) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(self.gradient, dim=1, dtype=torch.float64)
        return norm, norm

    def gradients(self) -> Tensor:
        return by_entry(self.index[:, None], self.gradient[:, None], self.table[0])

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        scaled = torch.round(self.gradient.double() * (factor / spacing)[:, None])
        whole = torch.where(factor[:, None] > 0, scaled, 0.0).to(torch.int64)
        # Whole numbers: the order in which a GPU adds them does not matter.
        return whole.new_zeros(self.table).index_add(0, self.index, whole).flatten()


class Reordered(Contribution):
    """A weight whose gradient was formed with its dimensions in another order: only the sums are put in order."""

    def __init__(self, inner: Contribution, order: Callable[[Tensor], Tensor]) -> None:
        self.inner, self.order = inner, order
        self.relative, self.absolute = inner.relative, inner.absolute
        self.bytes_per_unit = inner.bytes_per_unit

    def norms(self) -> tuple[Tensor, Tensor]:
        return self.inner.norms()

    def gradients(self) -> Tensor:
        found = self.inner.gradients()
        return self.order(found.to(working(found.dtype)))

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        return self.order(self.inner.sums(factor, spacing)[None])[0]


def merge(uses: Sequence[Contribution]) -> Contribution:
    """A parameter used more than once: its gradients are added before the norm, so cross terms count."""
    if len(uses) == 1:
        return uses[0]
    total = uses[0].gradients().to(working(uses[0].gradients().dtype))
    for use in uses[1:]:
        total = total + use.gradients()
    return PerExample(total)


def clip_and_sum(micro: Microbatch, found: Sequence[Mapping[str, Contribution]], groups: Groups) -> dict[str, Tensor]:
    """Parameter name → whole numbers of grid steps, int64 ``[numel]``, from the contributions of each part.

    Guarantee. A unit's part of the sums of a group has at most the norm of the group's clip.
    """
    device = micro.parts[0].batch.images.device
    owner = {name: group for group, (_, names) in groups.items() for name in names}
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        named = {part.prefix + n: c for part, own in zip(micro.parts, found, strict=True) for n, c in own.items()}
        joined = _joined(named, owner)
        factors = _factors(joined, owner, groups)
        sums: dict[str, Tensor] = {}
        for names, contribution in joined:
            group = owner[next(iter(names))]
            total = contribution.sums(factors[group], grid_spacing(groups[group][0]))
            sums.update(zip(names, total.split(list(names.values())) if len(names) > 1 else [total], strict=True))
    return sums


def _joined(named: Mapping[str, Contribution], owner: Mapping[str, str]) -> list[tuple[dict[str, int], Contribution]]:
    """Small gradients of a group side by side as one contribution, the others as they are; public shapes decide."""
    alike: dict[tuple[object, ...], list[tuple[str, Contribution]]] = {}
    for name, one in named.items():
        small = isinstance(one, PerExample) and one.gradient.shape[1] <= _SMALL
        key = (owner[name], one.gradient.dtype) if isinstance(one, PerExample) and small else (name,)
        alike.setdefault(key, []).append((name, one))
    found: list[tuple[dict[str, int], Contribution]] = []
    for parts in alike.values():
        whole = {name: one.gradient for name, one in parts if isinstance(one, PerExample)}
        joined = parts[0][1] if len(parts) == 1 else PerExample(torch.cat(list(whole.values()), 1))
        found.append(({name: whole[name].shape[1] if name in whole else 0 for name, _ in parts}, joined))
    return found


def _factors(
    joined: Sequence[tuple[dict[str, int], Contribution]], owner: Mapping[str, str], groups: Groups
) -> dict[str, Tensor]:
    """Group → what each unit's vector is multiplied with; 0 in every group if a norm of the unit is not finite."""
    measured: dict[str, list[tuple[Tensor, Tensor, Contribution]]] = {}
    for names, contribution in joined:
        measured.setdefault(owner[next(iter(names))], []).append((*contribution.norms(), contribution))
    factors = {}
    for group, values in measured.items():
        clip_norm, length = groups[group][0], torch.linalg.vector_norm
        # Numbers of Python times tensors: a tensor of them would have to be copied to a GPU, which waits for it.
        factors[group] = clip_factors(
            length(torch.stack([norm for norm, _, _ in values]), dim=0),
            clip_norm,
            slack=math.sqrt(sum(one.absolute**2 for _, _, one in values)) * grid_spacing(clip_norm),
            spread=length(torch.stack([spread for _, spread, _ in values]), dim=0),
            rounding=length(torch.stack([spread * one.relative for _, spread, one in values]), dim=0),
        )
    if len(factors) < 2:
        return factors
    finite = (torch.stack(list(factors.values())) > 0).all(0)
    return {group: torch.where(finite, factor, 0.0) for group, factor in factors.items()}


def clipped_feature_sum(values: Tensor, batch: Batch, clip_norm: float, classes: int | None) -> Tensor:
    """``[classes or 1, features]`` in whole grid steps, int64, of feature rows ``[rows, features]``.

    Guarantee. A unit moves the sum by at most the clip norm, whichever classes its rows are of; a unit whose vector is
    not finite counts as zero.
    """
    units, k = batch.units, batch.rows_per_unit
    weights = batch.weights.flatten()[:, None].double()
    rows = torch.where(weights > 0, values.double() * weights, 0.0)
    if k > 1 and classes is not None:
        vectors, slots = rows.new_zeros(units * classes, rows.shape[1]), batch.labels.view(units, k).clone()
        slots += classes * torch.arange(units, device=rows.device)[:, None]
        # One row of each unit at a time: no two go into one slot, where a GPU would add them in any order.
        for place in range(k):
            vectors[slots[:, place]] += rows.view(units, k, -1)[:, place]
        vectors = vectors.view(units, classes * rows.shape[1])
    else:
        vectors = rows.view(units, k, -1).sum(1) if k > 1 else rows
    whole = _clipped_to_grid(vectors, clip_norm, grid_spacing(clip_norm)).to(torch.int64)
    if classes is None:
        return whole.sum(0, keepdim=True)
    if k > 1:
        return whole.sum(0).view(classes, -1)
    return whole.new_zeros(classes, whole.shape[1]).index_add_(0, batch.labels, whole)


def clipped_moment_sum(values: Tensor, batch: Batch, clip_norm: float, classes: int | None) -> Tensor:
    """``[classes or 1, d (d + 1) / 2]``: upper triangles of Σ v vᵀ in whole grid steps, int64, of rows ``[rows, d]``.

    A unit's rows, each times the root of its weight, are clipped together to norm C and rounded to multiples of
    g = 2^-20 · 2^⌊log2 C⌋. Products are multiples of g², and those of one unit add up to less than 2^42 of them at
    every place, so that a product of up to 2^11 units is exact in float64. Further sums are kept in int64.

    Guarantee. A unit's matrix S has ‖S‖_F ≤ Σ‖v‖² ≤ C², in the norm that ``half_vector`` keeps; split by classes too.
    """
    if batch.units > _MOST_MOMENT_UNITS:
        raise ValueError(f"at most {_MOST_MOMENT_UNITS} units are added exactly at once, not {batch.units}")
    weights, size = batch.weights.flatten()[:, None].double(), values.shape[1]
    rows = torch.where(weights > 0, values.double() * weights.sqrt(), 0.0)
    whole = _clipped_to_grid(rows.view(batch.units, -1), clip_norm, _row_spacing(clip_norm)).view(-1, size)
    upper = torch.triu_indices(size, size, device=rows.device)
    members = [whole] if classes is None else [whole[batch.labels == label] for label in range(classes)]
    return torch.stack([(part.T @ part)[upper[0], upper[1]] for part in members]).to(torch.int64)


def _clipped_to_grid(vectors: Tensor, clip_norm: float, spacing: float) -> Tensor:
    """Float64 vectors ``[units, d]`` in whole grid steps: rounding adds at most √d / 2 steps, and the clip pays them.

    Guarantee. Each returned vector times ``spacing`` has norm at most ``clip_norm``; one that is not finite is zero.
    """
    slack = math.sqrt(vectors.shape[1]) / 2 * spacing
    factors = clip_factors(vectors.norm(dim=1), clip_norm, slack=slack, margin=DOUBLE_MARGIN)[:, None]
    return torch.round(torch.where(factors > 0, vectors, 0.0) * factors / spacing)


def moment_spacing(clip_norm: float) -> float:
    """The spacing of the grid for products of rows whose unit has this norm: a power of two."""
    return _row_spacing(clip_norm) ** 2


def _row_spacing(clip_norm: float) -> float:
    if not 2.0**-30 < clip_norm < 2.0**30:
        raise ValueError(f"the clip norm must lie between 2^-30 and 2^30, not {clip_norm}")
    return 2.0 ** (math.floor(math.log2(clip_norm)) - _MOMENT_BITS)


def half_vector(upper: Tensor, size: int) -> Tensor:
    """Upper triangles of symmetric matrices as vectors of the matrices' Frobenius norm: √2 off the diagonal."""
    return upper * _half_weights(size, upper)


def symmetric(vector: Tensor, size: int) -> Tensor:
    """The matrices ``[..., size, size]`` of half-vectors ``[..., size (size + 1) / 2]``."""
    rows, columns = torch.triu_indices(size, size, device=vector.device)
    found = vector.new_zeros(*vector.shape[:-1], size, size)
    found[..., rows, columns] = vector / _half_weights(size, vector)
    return found + found.triu(1).transpose(-1, -2)


def _half_weights(size: int, like: Tensor) -> Tensor:
    rows, columns = torch.triu_indices(size, size, device=like.device)
    return torch.where(rows == columns, 1.0, math.sqrt(2.0)).to(like)


# Arithmetic on vectors


def row_norms(rows: Tensor) -> Tensor:
    """The norm of each row of a matrix, float64."""
    if not _in_blocks(rows):
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    # Converted first, a few rows at a time: a norm that converts while it adds is not vectorised. Pieces of equal
    # size, because a reduction of another shape may be rounded otherwise.
    size = largest_divisor(len(rows), max(1, _BLOCK // max(1, rows.shape[1])))
    return torch.cat([torch.linalg.vector_norm(few.double(), dim=1) for few in rows.split(size)])


def _lengths(rows: Tensor) -> Tensor:
    """The length of every position's vector, ``[units, positions]``."""
    return row_norms(rows.flatten(0, 1)).view(rows.shape[:2])


def _gram_product(a: Tensor, b: Tensor) -> Tensor:
    """Each unit's ``Σ_{t,s} ⟨a_t, a_s⟩ ⟨b_t, b_s⟩``."""
    a, b = a.double(), b.double()
    return (torch.bmm(a, a.transpose(1, 2)) * torch.bmm(b, b.transpose(1, 2))).sum((1, 2))


def _whole_numbers(a: Tensor, b: Tensor, length: Tensor, factor: Tensor, *, spacing: float) -> tuple[Tensor, Tensor]:
    """Both operands as whole numbers in float64, 0 where a unit adds nothing."""
    counts = (factor[:, None] > 0) & (length > 0)
    right = factor[:, None] * length / (_SCALE * spacing)
    return _rounded(a, _SCALE / length, counts), _rounded(b, right, counts)


def _rounded(rows: Tensor, scale: Tensor, counts: Tensor) -> Tensor:
    scaled = rows.to(torch.float64, copy=True).mul_(scale[:, :, None]).round_()
    if _in_blocks(rows):
        unit, position = (~counts).nonzero(as_tuple=True)  # mostly none
        scaled[unit, position] = 0.0
        return scaled
    return torch.where(counts[:, :, None], scaled, 0.0)


def outer_products(a: Tensor, b: Tensor) -> Tensor:
    """Each unit's Σ_t b_t a_tᵀ, ``[units, outer · inner]``: one batched product over draws and places."""
    if a.shape[1] > 1:
        return torch.bmm(b.transpose(1, 2), a).flatten(1)
    dtype = working(a.dtype)
    return (b[:, 0, :, None].to(dtype) * a[:, 0, None, :].to(dtype)).flatten(1)


def by_entry(index: Tensor, gradient: Tensor, entries: int) -> Tensor:
    """Each unit's gradient of the table, ``[units, entries · width]``: look-ups of the same entry are added."""
    gradient = gradient.to(working(gradient.dtype))
    chosen = torch.nn.functional.one_hot(index, entries).to(gradient.dtype)
    return torch.bmm(chosen.transpose(1, 2), gradient).flatten(1)


def _whole_sum(parts: list[Tensor]) -> Tensor:
    """The sum of float64 tensors of whole numbers, in int64."""
    total = parts[0].to(torch.int64)
    for part in parts[1:]:
        total = total + part.to(torch.int64)
    return total


def _in_blocks(tensor: Tensor) -> bool:
    """On a CPU memory is the bottleneck; a GPU prefers few kernels, and a compiler makes its own blocks."""
    return tensor.device.type == "cpu" and not is_fake(tensor)


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype sums are formed in: operands in half precision are summed in float32, which holds them exactly."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor that is not above ``most``."""
    return next(size for size in range(min(number, most), 0, -1) if number % size == 0)
