"""Run a method's function on random images and refuse what could carry private values out of it.

The function runs under two torch modes that see every tensor operation. Tensors that are computed from the rows are
followed by their storage, so that constants stay free to use. Refused are

1. Python numbers, numpy arrays and text made from the rows (``item``, ``float``, ``if``, ``numpy``, ``print``),
2. results whose shape depends on the rows (``nonzero``, boolean masks, ``unique``),
3. writes into tensors that existed before, and tensors computed from the rows that are still alive afterwards,
4. the global generators of torch, numpy and Python, and the ids of the records,
5. files, environment variables, threads, processes, sockets, output on the terminal, log lines and warnings.

What a function computes from the shape of its arguments alone is not seen here; the probe compares several batch sizes.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import gc
import random as python_random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.side_effects import no_side_effects
from sfumato.privacy.randomness import Draws

_READS = [
    *("item", "tolist", "numpy", "__bool__", "__float__", "__int__", "__index__", "__complex__", "__array__"),
    *("__repr__", "__format__", "__contains__", "__reduce_ex__", "__dlpack__", "data_ptr", "untyped_storage"),
    *("storage", "equal", "allclose", "is_nonzero"),
]
_NUMBERS = {getattr(Tensor, name) for name in _READS} | {torch.equal, torch.allclose, torch.is_nonzero}
_HINT = "a loss, feature or update may only return one result for each row, computed from that row"


class Guard:
    """Follows what is computed from the rows while a function runs, and refuses what would let it out."""

    def __init__(self, *, fixed_shapes: bool = True) -> None:
        self._fixed_shapes = fixed_shapes
        self._made: dict[int, StorageWeakRef] = {}
        self._private: dict[int, StorageWeakRef] = {}
        self._active = False
        self._backward = False
        self._refusal: UnsupportedModel | None = None

    @contextmanager
    def __call__(self) -> Iterator[Guard]:
        """Observe everything inside. Functions passed through :meth:`wrap` are restricted, other code is not."""
        states = _generator_states()
        with ExitStack() as stack:
            stack.enter_context(no_side_effects(lambda: self._active, self.refuse))
            stack.enter_context(_Operations(self))
            stack.enter_context(_Calls(self))
            yield self
        if self._refusal is not None:
            raise self._refusal
        self._check_alive()
        if _generator_states() != states:
            self.refuse("it uses the global generator of torch, numpy or Python; take every draw from `random`")

    def wrap(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The function with copies of its tensors as arguments, restricted while it runs."""

        def guarded(*arguments: Any) -> Tensor:
            before, self._active = self._active, False
            own = tuple(self._argument(argument) for argument in arguments)
            self._active = True
            try:
                return function(*own)
            except UnsupportedModel:
                raise
            except Exception as error:
                raise UnsupportedModel(f"the function raised {type(error).__name__} on random images") from error
            finally:
                self._active = before

        return guarded

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Differentiate inside: autograd may branch on values, hooks that a function registered may not."""
        self._active = self._backward = True
        try:
            yield
        finally:
            self._active = self._backward = False

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Code inside is the project's or torch's own, and is not restricted."""
        before, self._active = self._active, False
        try:
            yield
        finally:
            self._active = before

    def refuse(self, what: str) -> None:
        if self._refusal is None:  # the first reason is the one to name
            self._refusal = UnsupportedModel(f"the function was refused on random images: {what}. {_HINT}")
        raise self._refusal

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Draws):
            rows, draw = argument.rows.clone(), argument.draw.clone()
            return _GuardedDraws(argument.key, rows, draw, self)
        if isinstance(argument, Tensor) and not isinstance(argument, torch.nn.Parameter):
            # A copy, so that keeping the argument itself is seen as well.
            return self.follow(argument.clone())
        return argument

    def follow(self, tensor: Tensor) -> Tensor:
        """From here on the tensor counts as computed from the rows."""
        for known in (self._made, self._private):
            _add(known, tensor)
        return tensor

    def made(self, tensors: list[Tensor], *, private: bool) -> None:
        for tensor in tensors:
            _add(self._made, tensor)
            if private:
                _add(self._private, tensor)

    def is_private(self, tensors: list[Tensor]) -> bool:
        return any(_in(self._private, tensor) for tensor in tensors)

    def is_outside(self, tensor: Tensor) -> bool:
        return not _in(self._made, tensor)

    def _check_alive(self) -> None:
        if any(not reference.expired() for reference in self._private.values()):
            gc.collect()  # reference cycles of the autograd graph
        if any(not reference.expired() for reference in self._private.values()):
            self.refuse(
                "tensors computed from the rows are still alive after the call: it keeps something of the batch"
            )


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a wrapper of torch.func, whose inner tensor is seen below it
        return None


def _add(known: dict[int, StorageWeakRef], tensor: Tensor) -> None:
    storage = _storage(tensor)
    if storage is not None and storage._cdata not in known:
        # A weak reference keeps the address from being used again, so that it identifies the storage.
        known[storage._cdata] = StorageWeakRef(storage)


def _in(known: dict[int, StorageWeakRef], tensor: Tensor) -> bool:
    storage = _storage(tensor)
    return storage is None or storage._cdata in known


class _Operations(TorchDispatchMode):
    """Below autograd: which storages are made from which, and what operations do with them."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard = guard

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        guard, kwargs = self.guard, kwargs or {}
        active, guard._active = guard._active, False  # what follows reads storages itself
        try:
            return self._run(func, args, kwargs, active)
        finally:
            guard._active = active

    def _run(self, func: Any, args: Any, kwargs: Any, active: bool) -> Any:
        guard = self.guard
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        private = guard.is_private(given)
        if active:
            if private and not guard._backward:
                self._check_result(func, args)
            if func._schema.is_mutable:
                self._check_writes(func, args, kwargs)
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if func._schema.is_mutable and private:
            made += given
        guard.made(made, private=private)
        return result

    def _check_result(self, func: Any, args: Any) -> None:
        if torch.Tag.data_dependent_output in func.tags:
            self.guard.refuse("it takes a Python number out of the rows (item, float, bool, an if on their values)")
        if torch.Tag.dynamic_output_shape in func.tags and self.guard._fixed_shapes:
            masks = [leaf for leaf in tree_leaves(args[1:]) if isinstance(leaf, Tensor)]
            if func.overloadpacket is torch.ops.aten.index and all(mask.dtype == torch.int64 for mask in masks):
                return
            self.guard.refuse("the shape of a result depends on the values of the rows (nonzero, a mask, unique)")

    def _check_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out:
                for tensor in tree_leaves(named.get(argument.name)):
                    if isinstance(tensor, Tensor) and self.guard.is_outside(tensor):
                        self.guard.refuse("it writes into a tensor that existed before the call (a buffer, a cache)")


class _Calls(TorchFunctionMode):
    """At Python level: methods that read values without an operation, such as ``numpy`` and ``tolist``."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard = guard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.guard._active and func in _NUMBERS:
            given = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            if self.guard.is_private(given):
                self.guard.refuse(f"it reads the values of the rows as Python objects ({func.__name__})")
        if func is torch.nn.functional.one_hot and _width(*args, **(kwargs or {})) > 0:
            with self.guard.trusted():  # it reads the labels only to check that they are in range
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _width(tensor: Tensor, num_classes: int = -1) -> int:
    return num_classes


@dataclass(frozen=True)
class _GuardedDraws(Draws):
    """Draws whose ids and key cannot be read; the numbers drawn count as computed from the rows.

    The number of a draw within its record (``draw``) is public.
    """

    guard: Guard

    def __getitem__(self, index: slice | Tensor) -> Draws:
        with self.guard.trusted():
            return _GuardedDraws(self.key, self.rows[index], self.draw[index], self.guard)

    def __len__(self) -> int:
        with self.guard.trusted():
            return len(self.rows)

    def _words(self, name: str, count: int) -> Tensor:
        with self.guard.trusted():
            return self.guard.follow(super()._words(name, count))

    def __getattribute__(self, name: str) -> Any:
        if name in ("rows", "key") and object.__getattribute__(self, "guard")._active:
            object.__getattribute__(self, "guard").refuse("it reads the ids of the records, which are not values")
        return object.__getattribute__(self, name)


def _generator_states() -> tuple[Any, ...]:
    devices = [torch.cuda.get_rng_state().numpy().tobytes()] if torch.cuda.is_initialized() else []
    kind, keys, position, *_ = np.random.get_state()
    return (
        torch.get_rng_state().numpy().tobytes(),
        *devices,
        (kind, np.asarray(keys).tobytes(), position),
        python_random.getstate(),
    )
