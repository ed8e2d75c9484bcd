"""One forward and one backward pass for all rows: what every use of a parameter contributes to each unit's gradient.

During a pass each trainable parameter is replaced by a ``Tracked`` tensor. Every function called with it arrives here.
A layer rule runs linear layers, convolutions and embeddings on the plain values and keeps (input, output gradient); in
any other function a parameter is replaced by a copy for each row. A use that went unnoticed all the same would leave a
path in the autograd graph to the ``Tracked`` leaf or to the parameter itself, and the backward pass looks for that.
Nothing here decides a bound: ``sums.py`` measures and clips whatever is found.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.func import functional_call
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from sfumato.privacy.gradients.batch import Batch, Loss, Part
from sfumato.privacy.gradients.one_row import UnsupportedModel, UntracedUse, each_row, row_number
from sfumato.privacy.sums import (
    Contribution,
    GhostClipping,
    Lookup,
    PerExample,
    Reordered,
    by_entry,
    largest_divisor,
    merge,
    outer_products,
    working,
)

# The loss of every row


class _Task(nn.Module):
    """The loss of every row as a module, so that the parameters inside can be exchanged by name."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        return each_row(self.loss, batch, self.model)


def losses(model: nn.Module, loss: Loss, batch: Batch, values: Mapping[str, Tensor]) -> Tensor:
    """The loss of every row, each by itself, with these tensors in place of the model's own."""
    own = {"model." + name: value for name, value in values.items()}
    found: Tensor = functional_call(_Task(model, loss), own, (batch,))
    return found


def weighted_loss(rows: Tensor, batch: Batch) -> Tensor:
    """The sum of the rows' losses, each with its weight; rows of weight 0 have no part in it."""
    weights = batch.weights.flatten()
    if rows.shape != weights.shape:
        raise UnsupportedModel(
            f"the loss must return one number for each row, a tensor of one dimension, not {rows.dim()} dimensions "
            "or another length: reduce over pixels, never over the batch"
        )
    return torch.where(weights > 0, rows * weights.to(rows.dtype), 0.0).sum()


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Parameter name → parameter, of those that are trained."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def refuse_outside_use(reached: list[str]) -> None:
    """Refuse a loss that uses parameters other than through the model it is given."""
    if reached:
        raise UnsupportedModel(
            f"the loss reaches parameter {reached[0]!r} by another way than the model it is given (a tensor kept from "
            "before, or a list of weights inside a recurrent layer), so its gradient for one record cannot be told "
            "apart; use the parameters as attributes of the model"
        )


# The pass


class TracedPass:
    """The contributions of one part of a batch, and the memory it took."""

    def __init__(self, part: Part, loss: Loss, values: Mapping[str, Tensor] | None = None) -> None:
        """``values`` stand in for the model's parameters and buffers, as in a compiled function."""
        record = _record(part, loss, values)
        with torch.no_grad(), torch.autocast(part.batch.images.device.type, enabled=False):
            self.contributions: dict[str, Contribution] = {
                name: merge(uses) for name, uses in record.contributions.items()
            }
        # Inputs and output gradients, the largest temporary, and what the contributions hold.
        held = sum(contribution.bytes_per_unit for contribution in self.contributions.values())
        self.bytes_per_unit = (2 * record.held + 2 * record.written) / part.batch.units + held


def _record(part: Part, loss: Loss, values: Mapping[str, Tensor] | None) -> Record:
    batch = part.batch
    record = Record(units=batch.units, device=batch.images.device)
    parameters = trainable_parameters(part.model)
    values = parameters if values is None else values
    tracked = {n: Tracked.of(n, parameter, values[n].detach(), record) for n, parameter in parameters.items()}
    with torch.enable_grad():
        total = weighted_loss(_losses(part, loss, {**values, **tracked}), batch)
        if not total.requires_grad:
            return record
        record.counting = True
        with torch.autocast(batch.images.device.type, enabled=False), torch._C.DisableTorchFunctionSubclass():
            leaves = [record.anchor, *tracked.values(), *parameters.values()]
            _, *reached = torch.autograd.grad(total, leaves, allow_unused=True)
    own, outside = reached[: len(tracked)], reached[len(tracked) :]
    refuse_outside_use([n for n, gradient in zip(parameters, outside, strict=True) if gradient is not None])
    for name, gradient in zip(tracked, own, strict=True):
        if gradient is not None:
            raise UntracedUse(f"parameter {name!r} is used where tracing does not look")
    return record


def _losses(part: Part, loss: Loss, values: Mapping[str, Tensor]) -> Tensor:
    try:
        return losses(part.model, loss, part.batch, values)
    except (UntracedUse, UnsupportedModel, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise UntracedUse(f"the loss fails under tracing ({type(error).__name__}: {error})") from error


# Every use of a parameter

Rule = Callable[["Record", Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[Any, Rule] = {}
"""torch function → the rule that understands a tracked parameter in it. Filled by ``layers``."""


class Record:
    """One forward and backward pass over the rows of ``units`` units."""

    def __init__(self, *, units: int, device: torch.device) -> None:
        self.units = units
        # Everything understood hangs on this leaf, so that autograd visits layers whose input needs no gradient.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.contributions: dict[str, list[Contribution]] = {}
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


def rows_to_units(gradient: Tensor, *, units: int) -> PerExample:
    """A gradient for each row, ``[rows, ...]``: the rows of a unit are added."""
    rows = gradient.reshape(units, gradient.shape[0] // units, -1)
    return PerExample(rows[:, 0] if rows.shape[1] == 1 else rows.sum(1, dtype=working(rows.dtype)))


# Layers

Pair = tuple[int, int]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

_MANY_POSITIONS = 32
"""Positions of a unit from which a grouped convolution is faster on a CPU than a product of patches."""

_CACHED = 1 << 20
"""Numbers that a grouped convolution writes at a time."""

_MEMORY_COST = 48.0
"""Multiplications that take as long as writing, measuring and adding one number of a gradient on a CPU."""

_MOST_ROUNDING = 1e-4
"""The share of a clip norm that ghost clipping may leave free for rounding."""


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


def prefers_ghost(*, positions: int, inner: int, outer: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether ghost clipping is the faster way to these gradients."""
    if dtype == torch.float64:
        return False  # float64 models are checked against the loop, more closely than 22-bit factors allow
    # What the rounding of both factors takes off the clip norm (``GhostClipping``).
    if (math.sqrt(inner) + positions * math.sqrt(outer)) / 2.0**23 > _MOST_ROUNDING:
        return False
    if device.type == "cuda":
        return positions == 1
    weight = float(inner * outer)
    # Products in float64 count twice.
    ghost = 2.0 * positions**2 * (inner + outer) + 2.0 * positions * weight
    return ghost < (positions + _MEMORY_COST) * weight


def weight_gradients(a: Tensor, b: Tensor) -> Contribution:
    """The contribution of a weight ``[outer, inner]`` from ``a`` ``[units, positions, inner]`` and ``b``."""
    shape = {"positions": a.shape[1], "inner": a.shape[2], "outer": b.shape[2]}
    if prefers_ghost(**shape, dtype=a.dtype, device=a.device):
        return GhostClipping(a, b)
    return PerExample(outer_products(a, b))


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
    if x.device.type == "cpu" and not is_fake(x) and x.dtype == torch.float32 and positions >= _MANY_POSITIONS:
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
