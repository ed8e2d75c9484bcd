"""The Python state that a function can reach: numbers, texts, sizes of containers and generators, each by its path."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LIMIT = 5000  # values; a loss reaches far fewer
_LEAVES = (bool, int, float, complex, str, bytes, type(None))
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
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
    if isinstance(generator, random.Random):
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
