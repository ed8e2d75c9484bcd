"""Two-dimensional convolutions and transposed convolutions, with stride, padding, dilation and groups.

A transposed convolution's weight gradient is that of the convolution it transposes, with input and output gradient in
exchanged roles; one class serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.privacy.gradients.contribution import Dense
from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.layers.linear import split
from sfumato.privacy.gradients.product import Product
from sfumato.privacy.gradients.rounding import working
from sfumato.privacy.gradients.tracing import RULES, Layer, Record, Tracked, autocast_dtype, see_product

Pair = tuple[int, int]


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
    """``[rows, channels, H, W] → [rows, channels · kernel, places]``: a strided view, written out once.

    ``torch.nn.functional.unfold`` does the same one image at a time on a GPU.
    """
    (top, left), (down, right), (high, wide) = geometry.padding, geometry.stride, geometry.dilation
    needed = ((places[0] - 1) * down + high * (kernel[0] - 1) + 1, (places[1] - 1) * right + wide * (kernel[1] - 1) + 1)
    below, beside = max(0, needed[0] - x.shape[2] - top), max(0, needed[1] - x.shape[3] - left)
    if top or left or below or beside:
        x = functional.pad(x, (left, beside, top, below))
    rows, channels, row, column = x.stride()
    view = x.as_strided(
        (x.shape[0], x.shape[1], *kernel, *places),
        (rows, channels, row * high, column * wide, row * down, column * right),
        x.storage_offset(),
    )
    return view.reshape(x.shape[0], x.shape[1] * kernel[0] * kernel[1], places[0] * places[1])


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


class ConvolutionWeight(Product):
    """``wide`` is the tensor patches are cut from, ``narrow`` the one with a value for each place."""

    convolves = True

    def __init__(self, x: Tensor, gradient: Tensor, *, layer: Convolution, units: int, stack: int) -> None:
        self.x, self.gradient, self.layer = x, gradient, layer
        geometry = layer.geometry
        self.wide, self.narrow = (gradient, x) if geometry.transposed else (x, gradient)
        self.places: Pair = (self.narrow.shape[2], self.narrow.shape[3])
        self.kernel: Pair = (layer.weight.shape[2], layer.weight.shape[3])
        self.groups = geometry.groups
        self.inner = self.wide.shape[1] // self.groups * self.kernel[0] * self.kernel[1]
        self.outer = self.narrow.shape[1] // self.groups
        self.units, self.stack, self.numel = units, stack, layer.weight.numel() // stack
        self.rows_per_unit = x.shape[0] // units
        self.positions = self.rows_per_unit * self.places[0] * self.places[1]
        self.device, self.dtypes = x.device, (x.dtype, gradient.dtype)
        self.kind = ("convolution", geometry, tuple(self.wide.shape[2:]), self.kernel, x.dtype)
        self.bytes = (x.numel() + gradient.numel()) * x.element_size()

    def operands(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows = slice(start * self.rows_per_unit, stop * self.rows_per_unit)
        a = patches(self.wide[rows], kernel=self.kernel, places=self.places, geometry=self.layer.geometry)
        return self._blocks(a, self.inner), self._blocks(self.narrow[rows].flatten(2), self.outer)

    def _blocks(self, tensor: Tensor, width: int) -> Tensor:
        """``[rows, groups · width, places] → [units · groups, width, rows per unit · places]``."""
        if self.rows_per_unit == 1:
            return tensor.reshape(-1, width, tensor.shape[2])
        tensor = tensor.reshape(-1, self.rows_per_unit, self.groups, width, tensor.shape[2])
        return tensor.permute(0, 2, 3, 1, 4).reshape(-1, width, self.positions)

    def by_groups(self) -> Tensor:
        dtype = working(self.x.dtype)
        one = self.layer.weight.view(self.stack, -1, *self.layer.weight.shape[1:])[:1]
        each = one.expand(self.units, *one.shape[1:])
        layer = Convolution(each, None, self.layer.geometry, stack=self.units, weight_name=None, bias_name=None)
        return layer.backward(self.x.to(dtype), self.gradient.to(dtype), weight=True).view(self.units, -1)

    def product(self, factor: Tensor) -> Tensor:
        dtype = working(self.x.dtype)
        factor = factor.to(dtype)
        if self.rows_per_unit > 1:
            factor = factor.repeat_interleave(self.rows_per_unit)
        factor = factor[:, None, None, None]
        # The gradient or the input may carry the factor; the one with fewer elements is cheaper to scale.
        x, gradient = self.x.to(dtype), self.gradient.to(dtype)
        if x.numel() < gradient.numel():
            x = x * factor
        else:
            gradient = gradient * factor
        return self.layer.backward(x, gradient, weight=True).view(self.stack, -1)


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
        y = torch.convolution(
            side_by_side(x, self.stack),
            self.weight,
            self.bias,
            g.stride,
            g.padding,
            g.dilation,
            g.transposed,
            g.output_padding,
            g.groups * self.stack,
        )
        return one_after_another(y, self.stack)

    def backward(self, x: Tensor, gradient: Tensor, *, weight: bool) -> Tensor:
        """The weight's gradient, ``[stack · out, ...]``, or the input's."""
        g = self.geometry
        input_gradient, weight_gradient, _ = torch.ops.aten.convolution_backward(
            side_by_side(gradient, self.stack),
            side_by_side(x, self.stack),
            self.weight.to(x.dtype),
            None,
            g.stride,
            g.padding,
            g.dilation,
            g.transposed,
            g.output_padding,
            g.groups * self.stack,
            [not weight, weight, False],
        )
        return weight_gradient if weight else one_after_another(input_gradient, self.stack)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        return self.backward(x, gradient, weight=False)

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        if self.weight_name is not None:
            weight = ConvolutionWeight(x, gradient, layer=self, units=record.units, stack=record.stack)
            record.add(self.weight_name, weight)
        if self.bias_name is not None:
            summed = gradient.sum((2, 3), dtype=working(gradient.dtype))
            record.add(self.bias_name, Dense(summed, units=record.units, stack=record.stack))


def _convolve(record: Record, x: Any, weight: Any, bias: Any, geometry: Geometry) -> Tensor:
    if isinstance(x, Tracked) or x.dim() != 4:
        raise UntracedUse("a parameter is the input of a convolution, or the input has no batch dimension")
    dtype = autocast_dtype(x)
    plain_weight, plain_bias, weight_name, bias_name = split(record, weight, bias, dtype)
    record.expect_rows(weight_name or bias_name or "", x)
    layer = Convolution(
        plain_weight, plain_bias, geometry, stack=record.stack, weight_name=weight_name, bias_name=bias_name
    )
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
