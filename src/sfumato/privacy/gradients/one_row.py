"""A function of rows sees one row: ``torch.func.vmap`` runs it for all rows of a batch.

Inside, no value becomes a Python number or a branch, no shape follows from values, nothing is drawn from torch's global
generators and no tensor of before is written to: torch refuses each of these. What torch would allow is refused here:
texts of tensors, hooks, functions with a vmap rule of their own, tensors that outlive the call, and Python state that a
call has changed.
"""

from __future__ import annotations

import gc
import random as python_random
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.randomness import Draws


class UntracedUse(Exception):
    """Tracing does not understand how a parameter is used; torch.func may."""


class UnsupportedModel(ValueError):
    """No way of finding gradients is sound for this model and loss; the message says why and what to do."""


_TEXTS = {Tensor.__repr__, Tensor.__format__}
_HOOKS = {Tensor.register_hook, Tensor.register_post_accumulate_grad_hook}
_HINT = "a loss, feature or update may only return one result for each row, computed from that row"


# A missing batching rule costs time and nothing else; the warning names it at every call.
torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]

_level: Callable[[Tensor], int] = torch._C._functorch.maybe_get_level
"""The number of the outermost ``torch.func`` transform that a tensor belongs to, -1 for a tensor of none."""


class OneRow(TorchFunctionMode):
    """Refuses what vmap allows and would let a value out of its row, and notes the tensors that are made."""

    def __init__(self, number: Tensor) -> None:
        """``number`` is a tensor of the row, of shape ``[1]``."""
        super().__init__()
        self.number = number
        self._level = _level(number)
        self._made: list[weakref.ref[Tensor]] = []

    def note(self, found: object) -> None:
        """Tensors that must not outlive the call."""
        if isinstance(found, Tensor):
            if _level(found) >= self._level:  # a constant may outlive the call
                self._made.append(weakref.ref(found))
        elif isinstance(found, (tuple, list)):
            for one in found:
                self.note(one)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TEXTS:
            raise UnsupportedModel(
                f"the function makes a text of a tensor, which shows every row of the batch; {_HINT}"
            )
        if func in _HOOKS:
            raise UnsupportedModel(f"the function registers a hook, which is called with all rows at once; {_HINT}")
        if getattr(func, "__name__", "") == "custom_function_call" and not args[0].generate_vmap_rule:
            raise UnsupportedModel(
                f"the autograd function {args[0].__name__} has no vmap rule, or one of its own, which is given all "
                "rows at once; set generate_vmap_rule = True"
            )
        found = func(*args, **(kwargs or {}))
        self.note(found)
        return found

    def refuse_kept(self) -> None:
        """Refuse a function that keeps a tensor of a row for later."""
        if any(one() is not None for one in self._made):
            gc.collect()  # what is only part of a cycle is not kept
        if any(one() is not None for one in self._made):
            raise UnsupportedModel(f"the function keeps a tensor that was computed from the rows; {_HINT}")


_modes: list[OneRow] = []
_tolerant: list[bool] = []


def row_number() -> Tensor:
    """A tensor of the row that the function sees, ``[1]``: what is computed from it has a value for each row."""
    return _modes[-1].number


@contextmanager
def first_call() -> Iterator[None]:
    """On random rows: a function may fill its caches at its first call."""
    _tolerant.append(True)
    try:
        yield
    finally:
        _tolerant.pop()


def each_row(function: Callable[..., Tensor], batch: Batch, *leading: object) -> Tensor:
    """``function(*leading, images, labels, random[, state])`` for every row by itself: one result for each row."""

    def one(image: Tensor, label: Tensor, row: Tensor, draw: Tensor, *state: Tensor) -> Tensor:
        found = function(*leading, image, label, replace(batch.random, rows=row, draw=draw), *state)
        if not isinstance(found, Tensor) or found.shape[:1] != (1,):
            raise UnsupportedModel("the function must give one result for each of the rows it gets")
        return found[0]

    fields = [batch.images, batch.labels, batch.random.rows, batch.random.draw]
    fields += [] if batch.state is None else [batch.state]
    return _isolated(function, one, [field[:, None] for field in fields])


def each_shard(function: Callable[..., Tensor], batch: Batch) -> Tensor:
    """``function(images, labels, weights, random, state)`` for every shard by itself: the shard's new state.

    A shard is a unit with many rows; the function gets ``[1, rows, ...]``, the draws of these rows and ``[1, ...]``.
    """
    if batch.state is None:
        raise UnsupportedModel("a function of shards updates their state, and no state was given")
    size = (batch.units, batch.rows_per_unit)
    memory = batch.state.unflatten(0, size)[:, 0] if batch.units else batch.state

    def one(images: Tensor, labels: Tensor, weights: Tensor, rows: Tensor, draw: Tensor, state: Tensor) -> Tensor:
        found = function(images, labels, weights, replace(batch.random, rows=rows[0], draw=draw[0]), state)
        if not isinstance(found, Tensor) or found.shape != state.shape:
            raise UnsupportedModel("the function must give each shard a state of the shape it had")
        return found[0]

    by_shard = [f.unflatten(0, size) for f in (batch.images, batch.labels, batch.random.rows, batch.random.draw)]
    images, labels, rows, draw = by_shard
    fields = [images, labels, batch.weights, rows, draw, memory]
    return _isolated(function, one, [field[:, None] for field in fields])


def one_group(loss: Callable[..., Tensor], model: object, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    """``loss(model, images, labels, random)`` of several rows together: a single number."""
    names = [one.name for one in dataclass_fields(random) if isinstance(getattr(random, one.name), Tensor)]

    def one(images: Tensor, labels: Tensor, *values: Tensor) -> Tensor:
        own: dict[str, Any] = dict(zip(names, values, strict=True))
        found = loss(model, images, labels, replace(random, **own))
        if not isinstance(found, Tensor) or found.dim():
            raise UnsupportedModel("the loss of a group must return a single number, a tensor without dimensions")
        return found

    drawn = [getattr(random, name)[None] for name in names]  # ids and draws are the group's own, as its images are
    return _isolated(loss, one, [images[None], labels[None], *drawn])[0]


def _isolated(function: object, one: Callable[..., Tensor], fields: Sequence[Tensor]) -> Tensor:
    """``one`` of every slice of the fields.

    Guarantee. The result of a slice is a function of that slice and public constants: ``one`` sees nothing else.
    """
    modes: list[OneRow] = []

    def guarded(number: Tensor, *values: Tensor) -> Tensor:
        with _in_mode(number) as mode:
            modes.append(mode)
            mode.note(values)
            return one(*values)

    numbers = fields[0].new_zeros(len(fields[0]), 1)
    with _unchanged_state(function):
        found: Tensor = torch.vmap(guarded, randomness="error")(numbers, *fields)
    for mode in modes:
        mode.refuse_kept()
    return found


@contextmanager
def _in_mode(number: Tensor) -> Iterator[OneRow]:
    with OneRow(number) as mode:
        _modes.append(mode)
        try:
            yield mode
        finally:
            _modes.pop()


@contextmanager
def _unchanged_state(function: object) -> Iterator[None]:
    """Refuse a function that counts its calls, which follow from the size of the batch, or draws from a generator."""
    before = None if _tolerant else python_state(function)
    generators = _generator_states()
    yield
    if _generator_states() != generators:
        raise UnsupportedModel("the function uses the global generator of numpy or Python; draw from `random`")
    if before is not None and python_state(function) != before:
        raise UnsupportedModel(
            "a call of the function changes Python state that outlives it (a counter, a list, a cache). Let it depend "
            "on its arguments and public constants alone"
        )


def _generator_states() -> tuple[object, ...]:
    kind, keys, position, *_ = np.random.get_state()
    return kind, np.asarray(keys).tobytes(), position, python_random.getstate()


def refuse_mixing(model: nn.Module) -> None:
    """Refuse, by name, layers that mix the rows of a batch or draw from torch's global generator."""
    for name, module in model.named_modules():
        kind = f"{type(module).__name__} {name!r}"
        updating = isinstance(module, _InstanceNorm) and module.training and module.track_running_stats
        if updating or (isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)):
            raise UnsupportedModel(
                f"{kind} normalises a record by the other records of its batch, or keeps statistics of them that are "
                "never noised, so that one record moves every gradient and no clip bounds it; use GroupNorm or "
                "LayerNorm, track_running_stats=False, or .eval() on a module whose statistics are public"
            )
        elif isinstance(module, _DropoutNd) and module.training and module.p > 0:
            raise UnsupportedModel(
                f"{kind} draws from torch's global generator, so a record's draws depend on who else is in the batch; "
                "remove it or draw the mask in the loss with random.uniform(name, ...)"
            )


# Python state


_LIMIT = 5000  # values; a loss reaches far fewer
_LEAVES = (bool, int, float, complex, str, bytes, type(None))
_GENERATORS = (np.random.Generator, np.random.RandomState, python_random.Random, torch.Generator)
_CONTAINERS = (list, tuple, set, frozenset, deque)


def python_state(function: object) -> dict[str, object]:
    """What a call could have changed without touching a tensor: counters, lists that grow, filled caches."""
    found: dict[str, object] = {}
    seen: set[int] = set()
    queue: deque[tuple[str, Any]] = deque([("function", function)])
    while queue and len(found) < _LIMIT:
        path, value = queue.popleft()
        if isinstance(value, _LEAVES):
            found[path] = value
        elif isinstance(value, _GENERATORS):
            found[path] = _generator_state(value)
        elif id(value) not in seen and not isinstance(value, (Tensor, ModuleType, type)):
            seen.add(id(value))
            if isinstance(value, (Mapping, *_CONTAINERS)):
                found[f"{path}: size"] = len(value)
            if hasattr(value, "cache_info"):
                found[f"{path}: size"] = value.cache_info().currsize
            queue.extend((f"{path}.{name}", child) for name, child in _children(value))
    return found


def _generator_state(generator: Any) -> object:
    """What the next draw depends on."""
    if isinstance(generator, np.random.Generator):
        return str(generator.bit_generator.state)
    if isinstance(generator, python_random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return str(generator.get_state(legacy=False))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((repr(key), child) for key, child in value.items() if isinstance(key, _LEAVES))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((str(place), child) for place, child in enumerate(value))
    elif isinstance(value, partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield from (("self", value.__self__), ("function", value.__func__))
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif hasattr(value, "__wrapped__"):
        yield "wrapped", value.__wrapped__
    elif hasattr(value, "__dict__"):
        yield from vars(value).items()
        yield "call", getattr(type(value), "__call__", None)  # noqa: B004


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    yield "defaults", function.__defaults__
    yield "keyword defaults", function.__kwdefaults__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    if not function.__module__.startswith(("torch", "numpy")):
        for name in function.__code__.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
