"""Linear layers: y = x Wᵀ + b, on any number of positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.privacy.gradients.contribution import rows_to_units, working
from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.per_record import weight_gradients
from sfumato.privacy.gradients.tracing import RULES, Layer, Record, Tracked, autocast_dtype, see_product


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
        if self.weight_name is not None:
            a, b = x.reshape(units, -1, x.shape[-1]), gradient.reshape(units, -1, gradient.shape[-1])
            record.add(self.weight_name, weight_gradients(a, b, stack=stack), held=x.nbytes + gradient.nbytes)
        if self.bias_name is not None:
            summed = gradient if gradient.dim() == 2 else gradient.flatten(1, -2).sum(1, dtype=working(gradient.dtype))
            record.add(self.bias_name, rows_to_units(summed, units=units, stack=stack))


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
