"""Bare parameters: scales, shifts, learned constants, added to or multiplied with something that has a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sfumato.privacy.gradients.contribution import rows_to_units
from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.tracing import RULES, Layer, Record, Tracked, see


class _Copies(Layer):
    """A copy of the parameter for each row; the gradient of row i's copy is row i's gradient of the parameter."""

    def __init__(self, parameter: Tracked, shape: tuple[int, ...]) -> None:
        self.parameter, self.shape = parameter, shape

    def forward(self, x: Tensor) -> Tensor:
        record = self.parameter.record
        plain = self.parameter.plain if record.stack > 1 else self.parameter.plain[None]
        copies = plain.view(record.stack, 1, *self.shape)
        return copies.expand(record.stack, record.rows // record.stack, *self.shape).reshape(record.rows, *self.shape)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        raise UntracedUse("the placeholder of a bare parameter has no gradient")

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        record.add(self.parameter.called, rows_to_units(gradient, units=record.units, stack=record.stack))


def copies(parameter: Tracked, shape: tuple[int, ...]) -> Tensor:
    """``[rows, *shape]``, a copy for each row; ``shape`` is a view of the parameter's own."""
    return see(parameter.record, _Copies(parameter, shape), parameter.record.anchor.detach())


def beside(parameter: Tracked, other: Any) -> Tensor:
    """The copies, shaped to broadcast with ``other`` as the parameter itself would."""
    record, shape = parameter.record, tuple(parameter.shape)
    if isinstance(other, Tracked) or not isinstance(other, Tensor):
        raise UntracedUse(f"parameter {parameter.called!r} is combined with something that has no batch dimension")
    if other.dim() == len(shape) and other.dim() and shape[0] == 1:
        shape = shape[1:]
    if other.dim() <= len(shape):
        raise UntracedUse(f"parameter {parameter.called!r} is combined with a tensor that has no further dimension")
    record.expect_rows(parameter.called, other)
    return copies(parameter, (1,) * (other.dim() - 1 - len(shape)) + shape)


def _elementwise(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2:
        raise UntracedUse(f"{func.__name__} with other than two operands")
    left, right = args
    if isinstance(left, Tracked):
        return func(beside(left, right), right, **kwargs)
    return func(left, beside(right, left), **kwargs)


def _expand(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    parameter, *rest = args
    sizes = tuple(rest[0]) if len(rest) == 1 and not isinstance(rest[0], int) else tuple(rest)
    shape = tuple(parameter.shape)
    if len(sizes) == len(shape) and shape and shape[0] == 1:
        shape = shape[1:]
    elif len(sizes) != len(shape) + 1:
        raise UntracedUse(f"parameter {parameter.called!r} is expanded by other than a batch dimension")
    if kwargs or sizes[0] != record.rows:
        raise UntracedUse(f"parameter {parameter.called!r} is expanded to another size than the batch")
    record.signature.append((parameter.called, "expand", *sizes[1:]))
    return copies(parameter, shape).expand(*sizes)


for _name in ("add", "sub", "mul", "div", "true_divide", "maximum", "minimum"):
    RULES[getattr(torch, _name)] = _elementwise
    RULES[getattr(Tensor, _name)] = _elementwise
for _name in ("__add__", "__radd__", "__mul__", "__rmul__", "__sub__", "__rsub__", "__truediv__", "__rtruediv__"):
    RULES[getattr(Tensor, _name)] = _elementwise
RULES[Tensor.__rdiv__] = _elementwise
RULES[torch.rsub] = _elementwise
RULES[Tensor.expand] = _expand
