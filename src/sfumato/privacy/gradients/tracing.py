"""Tracing: how every use of a parameter is seen, and what each layer's input and output gradient contribute.

During a pass each trainable parameter is replaced by a ``Tracked`` tensor. Every function called with it arrives here:
a use that a layer rule understands runs on the parameter's plain values and contributes in the backward pass; any other
use raises ``UntracedUse``. A use that went unnoticed all the same would leave a path in the autograd graph to the
``Tracked`` leaf or to the parameter itself, and the backward pass looks for exactly that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from sfumato.privacy.gradients.contribution import Contribution
from sfumato.privacy.gradients.errors import UntracedUse

Rule = Callable[["Record", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[Any, Rule] = {}
"""torch function → the rule that understands a tracked parameter in it. Filled by the files in ``layers``."""


class Record:
    """One forward and backward pass over ``rows`` rows of ``units`` units, for ``stack`` models side by side."""

    def __init__(self, *, rows: int, units: int, stack: int, device: torch.device) -> None:
        self.rows, self.units, self.stack = rows, units, stack
        # Everything understood hangs on this leaf, so that autograd visits layers whose input needs no gradient.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.contributions: dict[str, list[Contribution]] = {}
        self.signature: list[tuple[object, ...]] = []
        self.counting = self.channels_last = False
        self.held = self.written = 0

    def expect_rows(self, name: str, tensor: Tensor) -> None:
        """Refuse a tensor whose first dimension is not the rows.

        The signature shows that this is no coincidence: the same shapes after the first dimension at two different
        numbers of rows.
        """
        if tensor.dim() < 1 or tensor.shape[0] != self.rows:
            raise UntracedUse(f"parameter {name!r} meets a tensor whose first dimension is not the batch")
        self.signature.append((name, *tensor.shape[1:]))

    def add(self, name: str, contribution: Contribution, *, held: int = 0, written: int = 0) -> None:
        """Note what a use contributes, the bytes that autograd holds for it, and the bytes written to form it."""
        self.contributions.setdefault(name, []).append(contribution)
        self.held += held
        self.written = max(self.written, written)


class Tracked(Tensor):
    """A parameter under observation. ``plain``: its values; with stacked models ``[stack, *shape]``."""

    called: str
    plain: Tensor
    record: Record

    @classmethod
    def of(cls, name: str, parameter: Tensor, plain: Tensor, record: Record) -> Tracked:
        with _disable_current_modes():
            tracked = torch.Tensor._make_subclass(cls, parameter.detach(), True)
        tracked.called, tracked.plain, tracked.record = name, plain, record
        return tracked

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tracked = next(iter(_tracked((*args, *kwargs.values()))))
        rule, stacked = RULES.get(func), tracked.record.stack > 1
        if rule is not None and (torch.is_grad_enabled() or stacked):
            return rule(tracked.record, func, args, kwargs)
        name = getattr(func, "__name__", str(func))
        constant = not torch.is_grad_enabled() or name == "detach" or func == _DATA
        if name.endswith("_") and not name.endswith("__"):
            raise UntracedUse(f"{name} changes parameter {tracked.called!r} in place")
        with torch._C.DisableTorchFunctionSubclass(), torch.set_grad_enabled(torch.is_grad_enabled() and not constant):
            # The values of this pass: in a compiled function the parameter's own would become a constant.
            result = func(*_plain(args), **kwargs) if constant and not stacked else func(*args, **kwargs)
        if not any(isinstance(item, Tensor) for item in _flat(result)):
            # Shapes, dtypes, devices and plain numbers are constants to autograd as well.
            return result
        if constant and not stacked and isinstance(result, Tensor):
            return result.detach().as_subclass(Tensor)
        raise UntracedUse(f"{name} is applied to parameter {tracked.called!r}")


_DATA = Tensor.data.__get__  # type: ignore[attr-defined]


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _plain(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.plain if isinstance(value, Tracked) else value for value in values)


def _tracked(values: Iterable[Any]) -> Iterable[Tracked]:
    return (item for item in _flat(tuple(values)) if isinstance(item, Tracked))


class Layer(ABC):
    """One use of a layer: how it computes, and what its parameters' gradients are made of."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor: ...

    @abstractmethod
    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        """Hand the record a contribution for each tracked parameter of this use."""


class _Seen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: Layer, record: Record) -> Tensor:
        ctx.layer, ctx.record = layer, record
        # Kept by autograd, which notices when somebody changes it in place afterwards.
        ctx.save_for_backward(x)
        return layer.forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        if torch.is_grad_enabled():
            raise UntracedUse("the loss differentiates the network and keeps the graph")
        (x,) = ctx.saved_tensors
        # Detached: the record would otherwise hold the graph that holds the record, and memory would accumulate.
        x = x.detach()
        if ctx.record.counting:
            ctx.layer.note(ctx.record, x, gradient)
        return (ctx.layer.input_gradient(x, gradient) if ctx.needs_input_grad[0] else None), None, None, None


def see(record: Record, layer: Layer, x: Tensor) -> Tensor:
    """The layer's output, with a note to be made when the gradient comes back."""
    return _Seen.apply(x, record.anchor, layer, record)


def see_product(record: Record, layer: Layer, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The same for a layer that autocast would run in ``dtype``; the layer's weights are in it already."""
    if dtype is None:
        return _Seen.apply(x, record.anchor, layer, record)
    with torch.autocast(x.device.type, enabled=False):
        return _Seen.apply(x.to(dtype), record.anchor, layer, record)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast would turn the operands of a matrix product into; None when it is off."""
    if not torch.is_autocast_enabled(x.device.type) or x.dtype == torch.float64:
        return None
    return torch.get_autocast_dtype(x.device.type)
