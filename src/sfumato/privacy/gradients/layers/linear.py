"""Linear layers: y = x Wᵀ + b, on any number of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.privacy.gradients.contribution import Dense
from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.norms import Length
from sfumato.privacy.gradients.product import Product
from sfumato.privacy.gradients.rounding import working
from sfumato.privacy.gradients.tracing import RULES, Layer, Record, Tracked, autocast_dtype, see_product


class LinearWeight(Product):
    """x ``[rows, ..., in]`` and the gradient of y ``[rows, ..., out]``."""

    def __init__(self, x: Tensor, gradient: Tensor, *, units: int, stack: int, length: Length | None = None) -> None:
        self.length = length
        self.inner, self.outer, self.groups = x.shape[-1], gradient.shape[-1], 1
        self.x = x.reshape(units, -1, self.inner)
        self.gradient = gradient.reshape(units, -1, self.outer)
        self.units, self.stack, self.numel = units, stack, self.inner * self.outer
        self.positions = self.x.shape[1]
        self.device, self.kind, self.dtypes = x.device, ("linear", x.dtype), (x.dtype, gradient.dtype)
        self.bytes = (self.x.numel() + self.gradient.numel()) * x.element_size()

    def operands(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self.x[start:stop].transpose(1, 2), self.gradient[start:stop].transpose(1, 2)

    def lengths(self) -> tuple[Tensor, Tensor]:
        first, second = Length(self.x[:, 0]), self.length or Length(self.gradient[:, 0])
        return first.value(exact=self.exact), second.value(exact=self.exact)

    def product(self, factor: Tensor) -> Tensor:
        dtype = working(self.x.dtype)
        gradient = (self.gradient.to(dtype) * factor.to(dtype)[:, None, None]).view(self.stack, -1, self.outer)
        x = self.x.to(dtype).view(self.stack, -1, self.inner)
        if self.stack == 1:
            return (gradient[0].t() @ x[0]).view(1, -1)
        return torch.bmm(gradient.transpose(1, 2), x).view(self.stack, -1)


class Linear(Layer):
    """``weight`` is ``[out, in]``, stacked ``[stack, out, in]``; ``bias`` accordingly or None; no name: not tracked."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, stack: int, weight_name: str | None, bias_name: str | None
    ) -> None:
        self.weight, self.bias, self.stack = weight, bias, stack
        self.weight_name, self.bias_name = weight_name, bias_name

    def forward(self, x: Tensor) -> Tensor:
        if self.stack == 1:
            return functional.linear(x, self.weight, self.bias)
        rows = x.reshape(self.stack, -1, x.shape[-1])
        weight = self.weight.transpose(1, 2)
        y = torch.bmm(rows, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], rows, weight)
        return y.view(*x.shape[:-1], -1)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        if self.stack == 1:
            return gradient @ self.weight
        return torch.bmm(gradient.reshape(self.stack, -1, gradient.shape[-1]), self.weight).view(x.shape)

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        units, stack = record.units, record.stack
        # A bias has the output's gradient itself: one norm serves both.
        length = Length(gradient) if gradient.dim() == 2 and record.rows == units else None
        if self.weight_name is not None:
            record.add(self.weight_name, LinearWeight(x, gradient, units=units, stack=stack, length=length))
        if self.bias_name is not None:
            summed = gradient if gradient.dim() == 2 else gradient.flatten(1, -2).sum(1, dtype=working(gradient.dtype))
            record.add(self.bias_name, Dense(summed, units=units, stack=stack, length=length))


def split(
    record: Record, weight: Any, bias: Any, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor | None, str | None, str | None]:
    """Plain values (stacked where models are) and names of a weight and a bias, in autocast's dtype."""

    def plain(tensor: Any) -> Tensor:
        if isinstance(tensor, Tracked):
            value = tensor.plain
        elif tensor.requires_grad:
            raise UntracedUse("a layer mixes a parameter with a computed weight or bias")
        else:
            value = tensor if record.stack == 1 else tensor.expand(record.stack, *tensor.shape)
        return value if dtype is None else value.to(dtype)

    return (
        plain(weight),
        None if bias is None else plain(bias),
        weight.called if isinstance(weight, Tracked) else None,
        bias.called if isinstance(bias, Tracked) else None,
    )


def _linear(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    def arguments(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:
        return input, weight, bias

    x, weight, bias = arguments(*args, **kwargs)
    if isinstance(x, Tracked) or x.dim() < 2:
        raise UntracedUse("a parameter is the input of a linear layer, or the input has no batch dimension")
    dtype = autocast_dtype(x)
    plain_weight, plain_bias, weight_name, bias_name = split(record, weight, bias, dtype)
    record.expect_rows(weight_name or bias_name or "", x)
    layer = Linear(plain_weight, plain_bias, stack=record.stack, weight_name=weight_name, bias_name=bias_name)
    return see_product(record, layer, x, dtype)


RULES[functional.linear] = _linear
