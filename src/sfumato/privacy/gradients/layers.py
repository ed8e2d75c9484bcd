"""Layers whose parameters' gradients are found from inputs and output gradients: linear, convolution, embedding.

Normalisations are here because their scale and shift are applied apart, each row with a copy of its own. A transposed
convolution's weight gradient is that of the convolution it transposes, with input and output gradient in exchanged
roles; one class serves both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.privacy.gradients.contribution import (
    Contribution,
    PerExample,
    in_blocks,
    largest_divisor,
    rows_to_units,
    working,
)
from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.ghost import outer_products
from sfumato.privacy.gradients.per_record import Reordered, weight_gradients
from sfumato.privacy.gradients.tracing import RULES, Layer, Record, Tracked, autocast_dtype, copied, see

Pair = tuple[int, int]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

_MANY_POSITIONS = 32
"""Positions of a unit from which a grouped convolution is faster on a CPU than a product of patches."""

_CACHED = 1 << 20
"""Numbers that a grouped convolution writes at a time."""


def _value(tensor: Any, dtype: torch.dtype | None) -> Any:
    """Plain values of a weight or a bias, in autocast's dtype."""
    if tensor is None:
        return None
    if not isinstance(tensor, Tracked) and tensor.requires_grad:
        raise UntracedUse("a layer mixes a parameter with a computed weight or bias")
    plain = tensor.plain if isinstance(tensor, Tracked) else tensor
    return plain if dtype is None else plain.to(dtype)


def _name(tensor: Any) -> str | None:
    return tensor.called if isinstance(tensor, Tracked) else None


def _batched(x: Any, layer: Layer, record: Record, dtype: torch.dtype | None, dimensions: int) -> Tensor:
    """The layer's output, for an input with or without a first dimension for its rows."""
    x = copied(x)
    if x.dim() < dimensions:
        return see(record, layer, x[None], dtype)[0]
    return see(record, layer, x, dtype)


class Linear(Layer):
    """y = x Wᵀ + b on any number of positions; a name is None where the tensor is not tracked."""

    def __init__(self, weight: Any, bias: Any, dtype: torch.dtype | None) -> None:
        self.weight, self.bias = _value(weight, dtype), _value(bias, dtype)
        self.weight_name, self.bias_name = _name(weight), _name(bias)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        return gradient @ self.weight

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        if self.weight_name is not None:
            a = x.reshape(record.units, -1, x.shape[-1])
            b = gradient.reshape(record.units, -1, gradient.shape[-1])
            record.add(self.weight_name, weight_gradients(a, b), held=x.nbytes + gradient.nbytes)
        if self.bias_name is not None:
            summed = gradient if gradient.dim() == 2 else gradient.flatten(1, -2).sum(1, dtype=working(gradient.dtype))
            record.add(self.bias_name, rows_to_units(summed, units=record.units))


def _linear(record: Record, func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Tensor:
    def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
        dtype = autocast_dtype(input)
        return _batched(input, Linear(weight, bias, dtype), record, dtype, 2)

    return linear(*args, **kwargs)


@dataclass(frozen=True)
class Geometry:
    """What torch's convolution calls take."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    transposed: bool = False
    output_padding: Pair = (0, 0)


def _pair(value: Any) -> Pair:
    if isinstance(value, str):
        raise UntracedUse("padding is given by name")
    values = (value, value) if isinstance(value, int) else tuple(value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def patches(x: Tensor, *, kernel: Pair, places: Pair, geometry: Geometry) -> Tensor:
    """``[rows, channels, H, W] → [rows, places, kernel · channels]``, written out once, channels last.

    ``torch.nn.functional.unfold`` does the same one image at a time on a GPU.
    """
    (top, left), (down, right), (high, wide) = geometry.padding, geometry.stride, geometry.dilation
    reach = ((places[0] - 1) * down + 1, (places[1] - 1) * right + 1)
    needed = (reach[0] + high * (kernel[0] - 1), reach[1] + wide * (kernel[1] - 1))
    below, beside = max(0, needed[0] - x.shape[2] - top), max(0, needed[1] - x.shape[3] - left)
    x = x.permute(0, 2, 3, 1)
    if top or left or below or beside:
        x = functional.pad(x, (0, 0, left, beside, top, below))
    shifted = [
        x[:, i * high : i * high + reach[0] : down, j * wide : j * wide + reach[1] : right]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    return torch.cat(shifted, dim=3).flatten(1, 2)


def _side_by_side(x: Tensor, units: int) -> Tensor:
    """``[units · n, C, H, W] → [n, units · C, H, W]``: units become groups of one convolution."""
    return x.view(units, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def grouped_gradients(x: Tensor, gradient: Tensor, *, layer: Convolution, units: int) -> Tensor:
    """Each unit's weight gradient, ``[units, numel]``: units are groups of one convolution, and its draws the batch.

    A few units at a time, so that what is written stays in the cache. Every piece has the same number of units, so that
    all of them meet the same kernels.
    """
    g, shape = layer.geometry, tuple(layer.weight.shape)
    numel = math.prod(shape)
    piece = largest_divisor(units, max(1, _CACHED // numel))
    rows = piece * len(x) // units
    weight, found = x.new_empty(piece * shape[0], *shape[1:]), x.new_empty(units, numel)
    settings = (g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups * piece)
    for number in range(units // piece):
        own = slice(number * rows, (number + 1) * rows)
        beside = (_side_by_side(tensor[own], piece) for tensor in (gradient, x))
        _, part, _ = torch.ops.aten.convolution_backward(*beside, weight, None, *settings, [False, True, False])
        found[number * piece : (number + 1) * piece] = part.view(piece, numel)
    return found


def convolution_weight(x: Tensor, gradient: Tensor, *, layer: Convolution, units: int) -> Contribution:
    """The weight's gradients; ``wide`` is the tensor patches are cut from, ``narrow`` has a value for each place."""
    geometry, (height, width) = layer.geometry, layer.weight.shape[2:]
    wide, narrow = (gradient, x) if geometry.transposed else (x, gradient)
    places: Pair = (narrow.shape[2], narrow.shape[3])
    positions = len(x) // units * math.prod(places)
    if in_blocks(x) and x.dtype == torch.float32 and positions >= _MANY_POSITIONS:
        return PerExample(grouped_gradients(x, gradient, layer=layer, units=units))
    a = patches(wide, kernel=(height, width), places=places, geometry=geometry)
    b = narrow.permute(0, 2, 3, 1).flatten(1, 2)
    taps, groups = height * width, geometry.groups
    inner, outer = wide.shape[1] // groups, narrow.shape[1] // groups

    def order(found: Tensor) -> Tensor:
        """``[..., groups · outer, taps, inner]`` to torch's ``[..., groups · outer, inner, taps]``."""
        return found.view(-1, groups * outer, taps, inner).transpose(2, 3).flatten(1)

    if groups == 1:
        a, b = a.reshape(units, -1, taps * inner), b.reshape(units, -1, outer)
        return Reordered(weight_gradients(a, b), order)
    a = a.reshape(units, -1, taps, groups, inner).permute(0, 3, 1, 2, 4).reshape(units * groups, -1, taps * inner)
    b = b.reshape(units, -1, groups, outer).permute(0, 2, 1, 3).reshape(units * groups, -1, outer)
    return Reordered(PerExample(outer_products(a, b).view(units, -1)), order)


class Convolution(Layer):
    """A two-dimensional convolution or transposed convolution."""

    def __init__(self, weight: Any, bias: Any, geometry: Geometry, dtype: torch.dtype | None) -> None:
        self.weight, self.bias, self.geometry = _value(weight, dtype), _value(bias, dtype), geometry
        self.weight_name, self.bias_name = _name(weight), _name(bias)

    @property
    def _settings(self) -> tuple[Any, ...]:
        g = self.geometry
        return g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups

    def forward(self, x: Tensor) -> Tensor:
        return torch.convolution(x, self.weight, self.bias, *self._settings)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        wanted = [True, False, False]
        found, _, _ = torch.ops.aten.convolution_backward(gradient, x, self.weight, None, *self._settings, wanted)
        return found

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        if self.weight_name is not None:
            weight = convolution_weight(x, gradient, layer=self, units=record.units)
            taps = self.weight.shape[2] * self.weight.shape[3]
            written = taps * (gradient if self.geometry.transposed else x).nbytes
            record.add(self.weight_name, weight, held=x.nbytes + gradient.nbytes, written=written)
        if self.bias_name is not None:
            summed = gradient.sum((2, 3), dtype=working(gradient.dtype))
            record.add(self.bias_name, rows_to_units(summed, units=record.units))


def _convolution(record: Record, func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Tensor:
    def convolve(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Tensor:
        dtype = autocast_dtype(input)
        geometry = Geometry(_pair(stride), _pair(padding), _pair(dilation), groups)
        return _batched(input, Convolution(weight, bias, geometry, dtype), record, dtype, 4)

    return convolve(*args, **kwargs)


def _transposed(record: Record, func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Tensor:
    def convolve(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        dtype = autocast_dtype(input)
        geometry = Geometry(_pair(stride), _pair(padding), _pair(dilation), groups, True, _pair(output_padding))
        return _batched(input, Convolution(weight, bias, geometry, dtype), record, dtype, 4)

    return convolve(*args, **kwargs)


class Lookup(Contribution):
    """One look-up for each unit: the gradient is that of one entry of the table, and the others are zero."""

    relative = 0.0

    def __init__(self, index: Tensor, gradient: Tensor, *, table: tuple[int, int]) -> None:
        """``index`` is ``[units]``, ``gradient`` ``[units, width]``."""
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


def by_entry(index: Tensor, gradient: Tensor, entries: int) -> Tensor:
    """Each unit's gradient of the table, ``[units, entries · width]``: look-ups of the same entry are added."""
    gradient = gradient.to(working(gradient.dtype))
    chosen = functional.one_hot(index, entries).to(gradient.dtype)
    return torch.bmm(chosen.transpose(1, 2), gradient).flatten(1)


class _Embedding(Layer):
    def __init__(self, weight: Tracked, padding: int | None) -> None:
        self.weight, self.name, self.padding = weight.plain, weight.called, padding

    def forward(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.weight)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        raise UntracedUse("an index has no gradient")

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        if self.padding is not None:
            gradient = gradient.masked_fill((x == self.padding)[..., None], 0.0)
        entries, width = self.weight.shape
        index, gradient = x.reshape(record.units, -1), gradient.reshape(record.units, -1, width)
        if index.shape[1] == 1:
            record.add(self.name, Lookup(index[:, 0], gradient[:, 0], table=(entries, width)))
        else:
            record.add(self.name, PerExample(by_entry(index, gradient, entries)))


def _embedding(record: Record, func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Tensor:
    def look_up(
        input: Any,
        weight: Any,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        if max_norm is not None or scale_grad_by_freq:
            raise UntracedUse("an embedding with max_norm or scale_grad_by_freq depends on the whole batch")
        padding = None if padding_idx is None else padding_idx % weight.shape[0]
        return _batched(input, _Embedding(weight, padding), record, None, 1)

    return look_up(*args, **kwargs)


def _group_norm(record: Record, func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Tensor:
    def normalise(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        normal = functional.group_norm(copied(input), num_groups, eps=eps)
        return _affine(normal, weight, bias, (-1, *(1,) * (normal.dim() - 2)))

    return normalise(*args, **kwargs)


def _layer_norm(record: Record, func: Callable[..., Any], args: Arguments, kwargs: Keywords) -> Tensor:
    def normalise(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        normal = functional.layer_norm(copied(input), normalized_shape, eps=eps)
        return _affine(normal, weight, bias, tuple(normalized_shape))

    return normalise(*args, **kwargs)


def _affine(normal: Tensor, weight: Any, bias: Any, shape: tuple[int, ...]) -> Tensor:
    if weight is not None:
        normal = normal * copied(weight).view(shape)
    return normal if bias is None else normal + copied(bias).view(shape)


RULES[functional.linear] = _linear
RULES[functional.conv2d] = _convolution
RULES[functional.conv_transpose2d] = _transposed
RULES[functional.embedding] = _embedding
RULES[functional.group_norm] = _group_norm
RULES[functional.layer_norm] = _layer_norm
