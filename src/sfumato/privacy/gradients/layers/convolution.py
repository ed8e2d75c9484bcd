"""Two-dimensional convolutions and transposed convolutions, with stride, padding, dilation and groups.

A transposed convolution's weight gradient is that of the convolution it transposes, with input and output gradient in
exchanged roles; one class serves both.
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
from sfumato.privacy.gradients.layers.linear import split
from sfumato.privacy.gradients.per_record import Reordered, weight_gradients
from sfumato.privacy.gradients.tracing import RULES, Layer, Record, Tracked, autocast_dtype, see_product

Pair = tuple[int, int]

_MANY_POSITIONS = 32
"""Positions of a unit from which a grouped convolution is faster on a CPU than a product of patches."""

_CACHED = 1 << 20
"""Numbers that a grouped convolution writes at a time."""


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


def side_by_side(x: Tensor, stack: int) -> Tensor:
    """``[stack · n, C, H, W] → [n, stack · C, H, W]``: stacked models become groups of one convolution."""
    if stack == 1:
        return x
    return x.view(stack, -1, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def one_after_another(x: Tensor, stack: int) -> Tensor:
    """The way back."""
    if stack == 1:
        return x
    return x.view(x.shape[0], stack, -1, *x.shape[2:]).transpose(0, 1).flatten(0, 1)


def grouped_gradients(x: Tensor, gradient: Tensor, *, layer: Convolution, units: int) -> Tensor:
    """Each unit's weight gradient, ``[units, numel]``: units are groups of one convolution, and its draws the batch.

    A few units at a time, so that what is written stays in the cache. Every piece has the same number of units, so that
    all of them meet the same kernels.
    """
    g, shape = layer.geometry, (len(layer.weight) // layer.stack, *layer.weight.shape[1:])
    numel = math.prod(shape)
    piece = largest_divisor(units, max(1, _CACHED // numel))
    rows = piece * len(x) // units
    weight, found = x.new_empty(piece * shape[0], *shape[1:]), x.new_empty(units, numel)
    settings = (g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups * piece)
    for number in range(units // piece):
        own = slice(number * rows, (number + 1) * rows)
        beside = (side_by_side(tensor[own], piece) for tensor in (gradient, x))
        _, part, _ = torch.ops.aten.convolution_backward(*beside, weight, None, *settings, [False, True, False])
        found[number * piece : (number + 1) * piece] = part.view(piece, numel)
    return found


def convolution_weight(x: Tensor, gradient: Tensor, *, layer: Convolution, units: int, stack: int) -> Contribution:
    """The weight's gradients; ``wide`` is the tensor patches are cut from, ``narrow`` has a value for each place."""
    geometry, (height, width) = layer.geometry, layer.weight.shape[2:]
    wide, narrow = (gradient, x) if geometry.transposed else (x, gradient)
    places: Pair = (narrow.shape[2], narrow.shape[3])
    positions = len(x) // units * math.prod(places)
    if in_blocks(x) and x.dtype == torch.float32 and positions >= _MANY_POSITIONS:
        return PerExample(grouped_gradients(x, gradient, layer=layer, units=units), stack=stack)
    a = patches(wide, kernel=(height, width), places=places, geometry=geometry)
    b = narrow.permute(0, 2, 3, 1).flatten(1, 2)
    taps, groups = height * width, geometry.groups
    inner, outer = wide.shape[1] // groups, narrow.shape[1] // groups

    def order(found: Tensor) -> Tensor:
        """``[..., groups · outer, taps, inner]`` to torch's ``[..., groups · outer, inner, taps]``."""
        return found.view(-1, groups * outer, taps, inner).transpose(2, 3).flatten(1)

    if groups == 1:
        a, b = a.reshape(units, -1, taps * inner), b.reshape(units, -1, outer)
        return Reordered(weight_gradients(a, b, stack=stack), order)
    a = a.reshape(units, -1, taps, groups, inner).permute(0, 3, 1, 2, 4).reshape(units * groups, -1, taps * inner)
    b = b.reshape(units, -1, groups, outer).permute(0, 2, 1, 3).reshape(units * groups, -1, outer)
    return Reordered(PerExample(outer_products(a, b).view(units, -1), stack=stack), order)


class Convolution(Layer):
    """``weight`` is as torch has it, and ``[stack, ...]`` where models are stacked; ``bias`` accordingly."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        *,
        stack: int,
        weight_name: str | None,
        bias_name: str | None,
    ) -> None:
        # Stacked models lie side by side as groups of one convolution.
        self.weight = weight if stack == 1 else weight.flatten(0, 1)
        self.bias = bias if bias is None or stack == 1 else bias.flatten()
        self.geometry, self.stack = geometry, stack
        self.weight_name, self.bias_name = weight_name, bias_name

    def forward(self, x: Tensor) -> Tensor:
        g = self.geometry
        settings = (g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups * self.stack)
        y = torch.convolution(side_by_side(x, self.stack), self.weight, self.bias, *settings)
        return one_after_another(y, self.stack)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        g = self.geometry
        settings = (g.stride, g.padding, g.dilation, g.transposed, g.output_padding, g.groups * self.stack)
        gradient, x = side_by_side(gradient, self.stack), side_by_side(x, self.stack)
        wanted = [True, False, False]
        found, _, _ = torch.ops.aten.convolution_backward(gradient, x, self.weight, None, *settings, wanted)
        return one_after_another(found, self.stack)

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        if self.weight_name is not None:
            weight = convolution_weight(x, gradient, layer=self, units=record.units, stack=record.stack)
            taps = self.weight.shape[2] * self.weight.shape[3]
            written = taps * (gradient if self.geometry.transposed else x).nbytes
            record.add(self.weight_name, weight, held=x.nbytes + gradient.nbytes, written=written)
        if self.bias_name is not None:
            summed = gradient.sum((2, 3), dtype=working(gradient.dtype))
            record.add(self.bias_name, rows_to_units(summed, units=record.units, stack=record.stack))


def _convolve(record: Record, x: Any, weight: Any, bias: Any, geometry: Geometry) -> Tensor:
    if isinstance(x, Tracked) or x.dim() != 4:
        raise UntracedUse("a parameter is the input of a convolution, or the input has no batch dimension")
    dtype = autocast_dtype(x)
    plain_weight, plain_bias, weight_name, bias_name = split(record, weight, bias, dtype)
    record.expect_rows(weight_name or bias_name or "", x)
    layer = Convolution(
        plain_weight, plain_bias, geometry, stack=record.stack, weight_name=weight_name, bias_name=bias_name
    )
    if record.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    return see_product(record, layer, x, dtype)


def _convolution(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    def convolve(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Tensor:
        geometry = Geometry(_pair(stride), _pair(padding), _pair(dilation), groups)
        return _convolve(record, input, weight, bias, geometry)

    return convolve(*args, **kwargs)


def _transposed(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
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
        geometry = Geometry(_pair(stride), _pair(padding), _pair(dilation), groups, True, _pair(output_padding))
        return _convolve(record, input, weight, bias, geometry)

    return convolve(*args, **kwargs)


RULES[functional.conv2d] = _convolution
RULES[functional.conv_transpose2d] = _transposed
