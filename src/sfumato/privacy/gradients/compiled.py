"""A microbatch as one compiled function of fixed shapes.

The traced pass, the clip and the exact sum are recorded as one graph of tensor operations (``make_fx``) and compiled.
Parameters, buffers, images, labels, weights, state and random draws are its inputs, so that the graph holds no data.
What the loss reads besides its arguments becomes a constant: it must be a pure function of them, and the graph serves
only the very loss that it was recorded from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.clip import clip_and_sum
from sfumato.privacy.gradients.groups import Groups
from sfumato.privacy.gradients.microbatches import Microbatch
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.traced import TracedPass
from sfumato.privacy.randomness import Draws

Request = tuple[str, tuple[object, ...]]
"""A method of ``Draws`` and its arguments."""


def same_loss(one: Loss | None, other: Loss) -> bool:
    """Whether these are the same function, or the same method of the same object."""
    if one is None:
        return False
    parts = [(getattr(loss, "__func__", loss), getattr(loss, "__self__", None)) for loss in (one, other)]
    return parts[0][0] is parts[1][0] and parts[0][1] is parts[1][1]


@dataclass(frozen=True)
class _RecordedDraws(Draws):
    """Draws that note what is asked for, and answer from tensors that were drawn before."""

    drawn: dict[Request, Tensor] = field(default_factory=dict)
    source: Draws | None = None

    def _ask(self, method: str, *arguments: object) -> Tensor:
        request = (method, arguments)
        if request not in self.drawn:
            if self.source is None:
                raise RuntimeError(f"the loss asks for other draws than when it was recorded: {request}")
            self.drawn[request] = getattr(self.source, method)(*arguments)
        return self.drawn[request]

    def __getitem__(self, index: slice | Tensor) -> Draws:
        raise RuntimeError("a loss that takes some rows of its draws is not compiled")

    def uniform(self, name: str, *shape: int) -> Tensor:
        return self._ask("uniform", name, *shape)

    def normal(self, name: str, *shape: int) -> Tensor:
        return self._ask("normal", name, *shape)

    def integers(self, name: str, high: int, *shape: int) -> Tensor:
        return self._ask("integers", name, high, *shape)


class CompiledMicrobatch:
    """The compiled function of one microbatch shape, one loss and one set of clip groups."""

    def __init__(self, micro: Microbatch, loss: Loss, groups: Groups, performance: Performance) -> None:
        part = micro.parts[0]
        self._loss, self._groups, self._models = loss, groups, part.models
        self._shapes = _shapes(part.batch)
        self._requests = _requests(part.batch, part.models[0], loss)
        self._names: list[str] = []
        self._channels_last = performance.channels_last
        inputs = self._inputs(part.batch)
        graph = make_fx(self._function(micro), tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
        # A view that was possible while recording may not be in the memory layout that the compiler chooses.
        for node in graph.graph.nodes:
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default
        graph.recompile()
        mode = "reduce-overhead" if performance.cuda_graphs else None
        self._run: Callable[..., list[Tensor]] = torch.compile(graph, dynamic=False, fullgraph=True, mode=mode)

    def serves(self, micro: Microbatch, loss: Loss, groups: Groups) -> bool:
        """Whether this microbatch has the recorded shapes, loss, models and groups."""
        return (
            not micro.shared
            and same_loss(self._loss, loss)
            and groups == self._groups
            and micro.parts[0].models == self._models
            and _shapes(micro.parts[0].batch) == self._shapes
        )

    def __call__(self, micro: Microbatch) -> dict[str, Tensor]:
        """Parameter name → whole numbers of grid steps, as ``clip_and_sum`` gives them."""
        with torch.no_grad():
            found = self._run(*self._inputs(micro.parts[0].batch))
        return dict(zip(self._names, found, strict=True))

    def _inputs(self, batch: Batch) -> list[Tensor]:
        values = [value.detach() for model in self._models for value in _tensors(model).values()]
        drawn = [getattr(batch.random, method)(*arguments) for method, arguments in self._requests]
        state = [] if batch.state is None else [batch.state]
        rows = (batch.random.rows, batch.random.draw)
        return [*values, *drawn, *rows, batch.images, batch.labels, batch.weights, *state]

    def _function(self, micro: Microbatch) -> Callable[..., list[Tensor]]:
        part, names = micro.parts[0], [list(_tensors(model)) for model in self._models]

        def sums(*inputs: Tensor) -> list[Tensor]:
            tensors = iter(inputs)
            values = [dict(zip(own, itertools.islice(tensors, len(own)), strict=True)) for own in names]
            drawn = dict(zip(self._requests, itertools.islice(tensors, len(self._requests)), strict=True))
            rows, draw, images, labels, weights, *state = tensors
            random = _RecordedDraws(part.batch.random.key, rows, draw, drawn=drawn)
            batch = Batch(images, labels, random, weights, state[0] if state else None)
            one = replace(micro, parts=(replace(part, batch=batch),))
            contributions = TracedPass(
                one.parts[0], self._loss, values, channels_last=self._channels_last
            ).contributions
            found = clip_and_sum(one, [contributions], self._groups)
            self._names[:] = found
            return list(found.values())

        return sums


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _shapes(batch: Batch) -> tuple[object, ...]:
    fields = (batch.images, batch.labels, batch.weights, batch.state)
    return tuple(None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in fields)


def _requests(batch: Batch, model: nn.Module, loss: Loss) -> list[Request]:
    """What the loss draws, by asking it once."""
    random = _RecordedDraws(batch.random.key, batch.random.rows, batch.random.draw, source=batch.random)
    with torch.no_grad():
        replace(batch, random=random).losses(loss, model)
    return list(random.drawn)
