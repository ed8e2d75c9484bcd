"""Tracing: how every use of a parameter is seen, and what each layer's input and output gradient contribute.

During a pass each trainable parameter is replaced by a ``Tracked`` tensor. Every function called with it arrives here.
A layer rule runs linear layers, convolutions and embeddings on the plain values and keeps (input, output gradient); in
any other function a parameter is replaced by a copy for each row. A use that went unnoticed all the same would leave a
path in the autograd graph to the ``Tracked`` leaf or to the parameter itself, and the backward pass looks for that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from sfumato.privacy.gradients.contribution import Contribution, rows_to_units
from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.isolation import row_number

Rule = Callable[["Record", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[Any, Rule] = {}
"""torch function → the rule that understands a tracked parameter in it. Filled by ``layers``."""


class Record:
    """One forward and backward pass over the rows of ``units`` units."""

    def __init__(self, *, units: int, device: torch.device, channels_last: bool = False) -> None:
        self.units = units
        # Everything understood hangs on this leaf, so that autograd visits layers whose input needs no gradient.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.contributions: dict[str, list[Contribution]] = {}
        self.channels_last = channels_last
        self.counting = False
        self.held = self.written = 0

    def add(self, name: str, contribution: Contribution, *, held: int = 0, written: int = 0) -> None:
        """Note what a use contributes, the bytes that autograd holds for it, and the bytes written to form it."""
        self.contributions.setdefault(name, []).append(contribution)
        self.held += held
        self.written = max(self.written, written)


class Tracked(Tensor):
    """A parameter under observation. ``plain``: its values."""

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
        tracked = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tracked))
        name = getattr(func, "__name__", str(func))
        if name.endswith("_") and not name.endswith("__"):
            raise UntracedUse(f"{name} changes parameter {tracked.called!r} in place")
        if not torch.is_grad_enabled() or name == "detach" or func == _DATA:
            args, kwargs = tree_map(_plain, (args, kwargs))
            return func(*args, **kwargs)
        if func in RULES:
            return RULES[func](tracked.record, func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            if name in _PROPERTIES or func in _GETTERS:
                return func(*args, **kwargs)
        args, kwargs = tree_map(copied, (args, kwargs))
        return func(*args, **kwargs)


_DATA = Tensor.data.__get__  # type: ignore[attr-defined]
_PROPERTIES = {
    "dim",
    "size",
    "numel",
    "stride",
    "is_floating_point",
    "is_complex",
    "element_size",
    "__len__",
    "ndimension",
}
_GETTERS = {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "is_cuda", "is_sparse")
}


def _plain(value: Any) -> Any:
    return value.plain if isinstance(value, Tracked) else value


def copied(value: Any) -> Any:
    """A copy of a tracked parameter for each row; row i's gradient of its copy is its gradient of the parameter."""
    return see(value.record, _Copies(value), row_number())[0] if isinstance(value, Tracked) else value


class Layer(ABC):
    """One use of a layer: how it computes, and what its parameters' gradients are made of. Rows come first."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor: ...

    @abstractmethod
    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        """Hand the record a contribution for each tracked parameter of this use."""


class _Copies(Layer):
    def __init__(self, parameter: Tracked) -> None:
        self.parameter = parameter

    def forward(self, x: Tensor) -> Tensor:
        plain = self.parameter.plain
        return plain.expand(len(x), *plain.shape).clone()

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        raise UntracedUse("the number of a row has no gradient")

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        record.add(self.parameter.called, rows_to_units(gradient, units=record.units))


class _Seen(torch.autograd.Function):
    """A layer on all rows: what autograd records."""

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


class _SeenByRow(torch.autograd.Function):
    """The same as the function of one row sees it: its vmap rule is the step from one row to all of them."""

    @staticmethod
    def forward(x: Tensor, anchor: Tensor, number: Tensor, layer: Layer, record: Record) -> Tensor:
        raise UntracedUse("a layer is used where the rows are not")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise UntracedUse("the loss differentiates the network")

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, x: Tensor, anchor: Tensor, number: Tensor, layer: Layer, record: Record
    ) -> tuple[Tensor, int]:
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        y = _Seen.apply(x.flatten(0, 1), anchor, layer, record)
        return y.unflatten(0, (info.batch_size, -1)), 0


def see(record: Record, layer: Layer, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The layer's output for one row, with a note to be made when the gradient comes back.

    Autocast would run the layer in ``dtype``; its weights are in it already.
    """
    if dtype is None:
        return _SeenByRow.apply(x, record.anchor, row_number(), layer, record)
    with torch.autocast(x.device.type, enabled=False):
        return _SeenByRow.apply(x.to(dtype), record.anchor, row_number(), layer, record)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast would turn the operands of a matrix product into; None when it is off."""
    if not torch.is_autocast_enabled(x.device.type) or x.dtype == torch.float64:
        return None
    return torch.get_autocast_dtype(x.device.type)
