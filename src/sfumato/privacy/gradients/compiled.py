"""A microbatch as one compiled function of fixed shapes.

The traced pass, its random draws, the clip and the exact sum are recorded as one graph of tensor operations
(``make_fx``) and compiled. Parameters, buffers, images, labels, weights, state and the keys of the draws are its
inputs, so that the graph holds no data. What the loss reads besides its arguments becomes a constant: it must be a pure
function of them, and the graph serves only the very loss that it was recorded from.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from sfumato.privacy.gradients.batch import Batch, Groups, Loss, Microbatch
from sfumato.privacy.gradients.layers import TracedPass
from sfumato.privacy.gradients.one_row import each_row, python_state
from sfumato.privacy.gradients.performance import Performance, tolerance
from sfumato.privacy.gradients.places import Run
from sfumato.privacy.randomness import Draws, Words, key_of
from sfumato.privacy.sums import clip_and_sum

_MOST_BLOCKS = 1 << 20
"""Blocks of four random words that a row may ask for."""

_OPTIONS: dict[str, str | int | bool] = {
    # Kernels are chosen without timing.
    "deterministic": True,
    "shape_padding": False,
    # A number that is rounded in eager mode is rounded here too: the norm is taken from what is added.
    "emulate_precision_casts": True,
}


@dataclass(frozen=True)
class _Request:
    """What a sum asks for; everything in it is public."""

    loss: Loss
    groups: Groups
    performance: Performance
    state: tuple[object, ...]

    def equals(self, other: _Request) -> bool:
        own, others = ((one.groups, one.performance, one.state) for one in (self, other))
        return same_loss(self.loss, other.loss) and own == others


_last: weakref.WeakKeyDictionary[nn.Module, _Request] = weakref.WeakKeyDictionary()


def comes_again(model: nn.Module, loss: Loss, groups: Groups, performance: Performance) -> bool:
    """Whether the microbatches of a sum are compiled: if the last sum of this model asked for the same.

    Compiling pays only then, and what else a loss reads would be a constant of the graph. Asked once for each sum, even
    of an empty batch, so that the answer depends on nothing that a record could change.
    """
    if not performance.compile:
        return False
    modules = tuple(module.training for module in model.modules())
    values = tuple((value.dtype, value.shape) for value in _tensors(model).values())
    request = _Request(loss, groups, performance, (modules, values, python_state(loss)))
    before, _last[model] = _last.get(model), request
    return before is not None and before.equals(request)


def same_loss(one: Loss, other: Loss) -> bool:
    """Whether these are the same function, or the same method of the same object."""
    parts = [(getattr(loss, "__func__", loss), getattr(loss, "__self__", None)) for loss in (one, other)]
    return parts[0][0] is parts[1][0] and parts[0][1] is parts[1][1]


@dataclass(frozen=True)
class _NamedDraws(Draws):
    """Draws that note the names that are asked for; with ``keys``, each name's key is taken from there.

    ``numbers`` are 0, 1, … as an input: of a range in the graph the compiler knows that it fits into 32 bits, and
    refuses to multiply it by larger constants.
    """

    asked: list[str] = field(default_factory=list)
    keys: Mapping[str, Words] | None = None
    numbers: Tensor | None = None

    def _positions(self, count: int) -> Tensor:
        return super()._positions(count) if self.numbers is None else self.numbers[:count]

    def _named_key(self, name: str) -> Words:
        if name not in self.asked:
            self.asked.append(name)
        if self.keys is None:
            return key_of(self.key, name)
        if name not in self.keys:
            raise RuntimeError(f"the loss asks for other draws than when it was recorded: {name}")
        return self.keys[name]


class CompiledMicrobatch:
    """The compiled function of one microbatch shape, one loss and one set of clip groups."""

    def __init__(self, micro: Microbatch, loss: Loss, groups: Groups, performance: Performance) -> None:
        part = micro.parts[0]
        self._loss, self._groups, self.model = loss, groups, part.model
        self._shapes = _shapes(part.batch)
        self._drawn = _drawn(part.batch, part.model, loss)
        self._numbers = torch.arange(_MOST_BLOCKS, device=part.batch.images.device)
        self._names: list[str] = []
        self._strides: list[tuple[int, ...]] | None = None
        inputs = self._inputs(part.batch)
        self._strides = [value.stride() for value in inputs]
        graph = make_fx(self._function(micro), tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
        # A view that was possible while recording may not be in the memory layout that the compiler chooses.
        for node in graph.graph.nodes:
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default
        graph.recompile()
        # Inductor itself: the graph is recorded, so there is no Python code left for torch.compile to look at.
        options = {name: value for name, value in _OPTIONS.items() if hasattr(torch._inductor.config, name)}
        with torch.no_grad():
            self._run: Callable[..., list[Tensor]] = torch._inductor.compile(graph, [*inputs], options=options)

    def serves(self, micro: Microbatch, loss: Loss, groups: Groups) -> bool:
        """Whether this microbatch has the recorded shapes, loss, models and groups."""
        return (
            not micro.shared
            and same_loss(self._loss, loss)
            and groups == self._groups
            and micro.parts[0].model is self.model
            and _shapes(micro.parts[0].batch) == self._shapes
        )

    def __call__(self, micro: Microbatch) -> dict[str, Tensor]:
        """Parameter name → whole numbers of grid steps, as ``clip_and_sum`` gives them."""
        with torch.no_grad():
            found = self._run(*self._inputs(micro.parts[0].batch))
        return dict(zip(self._names, found, strict=True))

    def _inputs(self, batch: Batch) -> list[Tensor]:
        values = [value.detach() for value in _tensors(self.model).values()]
        keys = [key_of(batch.random.key, name) for name in self._drawn]
        state = [] if batch.state is None else [batch.state]
        words = torch.tensor(keys, dtype=torch.int64, device=batch.images.device).view(-1, 2)
        inputs = [*values, words, self._numbers, batch.random.rows, batch.random.draw]
        inputs += [batch.images, batch.labels, batch.weights, *state]
        if self._strides is None:
            return inputs
        return [_laid_out(value, stride) for value, stride in zip(inputs, self._strides, strict=True)]

    def _function(self, micro: Microbatch) -> Callable[..., list[Tensor]]:
        part, names = micro.parts[0], list(_tensors(self.model))

        def sums(*inputs: Tensor) -> list[Tensor]:
            tensors = iter(inputs)
            values = dict(zip(names, itertools.islice(tensors, len(names)), strict=True))
            words, numbers, rows, draw, images, labels, weights, *state = tensors
            keys = {name: (words[place, 0], words[place, 1]) for place, name in enumerate(self._drawn)}
            random = _NamedDraws(part.batch.random.key, rows, draw, keys=keys, numbers=numbers)
            batch = Batch(images, labels, random, weights, state[0] if state else None)
            one = replace(micro, parts=(replace(part, batch=batch),))
            found = clip_and_sum(one, [TracedPass(one.parts[0], self._loss, values).contributions], self._groups)
            self._names[:] = found
            return list(found.values())

        return sums


def compiled_microbatch(
    public: Microbatch, loss: Loss, groups: Groups, performance: Performance, eager: Run
) -> CompiledMicrobatch | None:
    """The compiled function, if it gives the eager sums on these random images; otherwise None, with a warning."""
    reason = "the sums differ from the eager ones on random images"
    try:
        compiled = CompiledMicrobatch(public, loss, groups, performance)
        found, expected = compiled(public), eager(public)
        apart = torch.stack([(found[name] - whole).double().norm() for name, whole in expected.items()]).norm()
        size = torch.stack([whole.double().norm() for whole in expected.values()]).norm()
        allowed = tolerance((p.dtype for p in compiled.model.parameters()), public.parts[0].batch.images.device)
        if found.keys() == expected.keys() and bool(apart <= allowed * size):
            return compiled
    except Exception as error:  # whatever a compiler raises, the eager way is right
        reason = f"{type(error).__name__} while compiling"
    warnings.warn(f"microbatches are not compiled: {reason}", stacklevel=2)
    return None


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _shapes(batch: Batch) -> tuple[object, ...]:
    fields = (batch.images, batch.labels, batch.weights, batch.state)
    return tuple(None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in fields)


def _laid_out(value: Tensor, stride: tuple[int, ...]) -> Tensor:
    """The tensor with the strides that the compiled code expects."""
    if value.stride() == stride:
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device).copy_(value)


def _drawn(batch: Batch, model: nn.Module, loss: Loss) -> list[str]:
    """The names of what the loss draws, by asking it once."""
    random = _NamedDraws(batch.random.key, batch.random.rows, batch.random.draw)
    with torch.no_grad():
        each_row(loss, replace(batch, random=random), model)
    return random.asked
