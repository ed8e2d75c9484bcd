"""One step of an event: its batch, and the queries about it. Nothing that is raised on private rows is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from warnings import catch_warnings

import torch
from torch import Tensor, nn

from sfumato.privacy.events import SubsampledGaussian
from sfumato.privacy.gradients import (
    Batch,
    Clip,
    Loss,
    NoisyGradient,
    Performance,
    UnsupportedModel,
    check,
    check_rows,
    check_shards,
    groups_of,
)
from sfumato.privacy.gradients.engine import GradientSum, code_of
from sfumato.privacy.gradients.one_row import each_row, each_shard
from sfumato.privacy.gradients.terms import Coupled, Grouped, Terms
from sfumato.privacy.mechanism import ClippedSum, Query, with_noise
from sfumato.privacy.records import PrivateState
from sfumato.privacy.sums import (
    FixedPointSum,
    clipped_feature_sum,
    clipped_moment_sum,
    grid_spacing,
    half_vector,
    moment_spacing,
    symmetric,
)

if TYPE_CHECKING:
    from sfumato.privacy.curator import Curator


Result = TypeVar("Result")


class PrivateRowsError(RuntimeError):
    """An exception on private records, without its text."""


def on_private_rows(function: Callable[..., Result], *arguments: Any, internal: bool) -> Result:
    """Call the function. Its warnings, and the text of what it raises, may quote or count records and are withheld."""
    try:
        with nullcontext() if internal else catch_warnings(action="ignore"):
            return function(*arguments)
    except UnsupportedModel:
        raise  # our own text, which quotes nothing
    except Exception as error:
        if internal:
            raise
        name = type(error).__name__
    # Outside of the handler, so that the exception is not kept as the context of this one.
    raise PrivateRowsError(
        f"{name} was raised on private records; its text is withheld because it may describe them. Reproduce it on "
        "public images, or use internal=True where the output stays with the data"
    )


Features = Callable[..., Tensor]
"""``features(images, labels, random) -> [rows, ...]``: one vector per row, a function of that row alone."""

_NUMBERS = 1 << 24  # in one microbatch of images, or of vectors
_VECTORS = 256  # units in one pass of a function of rows


class Step:
    """The batch of one step and the blocks of its event, each of which is answered at most once."""

    def __init__(self, curator: Curator, event: SubsampledGaussian, index: int) -> None:
        self.index = index
        self._curator = curator
        self._event = event
        self._answered: set[str] = set()
        self._over = False
        self._batch = self._on_private_rows(curator._batches.sample, event, index)

    def noisy_gradient(
        self,
        block: str,
        model: nn.Module,
        loss: Loss,
        *,
        clip_norm: Clip,
        draws: int = 1,
        state: PrivateState | None = None,
        performance: Performance | None = None,
    ) -> NoisyGradient:
        """The sum over the batch of each unit's clipped gradient, plus noise.

        Args:
            block: The planned block that this answers.
            model: Its trainable parameters get the gradient.
            loss: ``loss(model, images, labels, random[, state])``, one number per row.
            clip_norm: One for the whole model, or one for each group of parameters, by the start of their names.
            draws: A unit's loss is averaged over this many independent draws before the clip.
            state: Private state that the loss may read.
            performance: Arithmetic, compilation and memory; none of it changes the mechanism.
        """
        groups = groups_of(model, clip_norm)
        self._probe(block, draws, state, lambda batch: check(model, loss, batch, clip_norm))
        expected = self._curator._batches.expected_units(self._event)
        total = GradientSum(model, loss, clip_norm, expected_units=expected, performance=performance)
        self._once((f"microbatches of {block}", str(total.compiles)), draws, state, total.prepare)
        numbers = math.prod(self._curator.shape) * draws
        for batch in self._batches(block, draws, state, max(1, _NUMBERS // numbers)):
            self._on_private_rows(total.add, batch)
        totals = total.values(self._over_processes(block, total.limbs()))
        joined = [
            (group or "all", torch.cat([totals[name].flatten() for name in names]), norm)
            for group, (norm, names) in groups.items()
        ]
        names = [name for _, members in groups.values() for name in members]
        sums = with_noise(joined, self._noise_multiplier(block))
        return self._gradient(block, model, names, sums, {"query": "gradient", "draws": draws})

    def noisy_terms(self, block: str, model: nn.Module, terms: Terms, *, draws: int = 1) -> NoisyGradient:
        """The average of loss terms over several records, with noise for the movement that one unit can cause.

        See :class:`~sfumato.privacy.gradients.terms.Grouped` and ``Coupled``.
        """
        if self._event.shards is not None:
            raise ValueError(f"{self._event.name!r} queries shards; terms of several records need units")
        self._probe(block, draws, None, lambda few: terms.check(model, few))
        if type(terms) not in (Grouped, Coupled):
            self._curator.note_own_code(type(terms).__name__)
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        if self._curator._world.first:
            (whole,) = self._batches(block, draws, None, None)
            totals = self._on_private_rows(terms.total, model, whole)
            joined = torch.cat([totals[name].flatten() for name in names])
        else:
            # Terms couple the units of a batch: the first process has all of them, the others add zero.
            numel = sum(dict(model.named_parameters())[name].numel() for name in names)
            joined = torch.zeros(numel, dtype=torch.float64, device=self._curator.device)
        # The bits of a single process's float64 numbers, as whole numbers: adding zeros leaves them as they are.
        joined = self._over_processes(block, joined.view(torch.int64)).view(torch.float64)
        sums = with_noise([("all", joined, terms.bound)], self._noise_multiplier(block))
        return self._gradient(block, model, names, sums, {"query": "terms", "draws": draws})

    def noisy_sum(
        self,
        block: str,
        features: Features,
        *,
        clip_norm: float,
        by_class: bool = False,
        state: PrivateState | None = None,
    ) -> Tensor:
        """The sum over the batch of each unit's clipped feature vector, plus noise.

        A unit's vector is the average over its rows. With ``by_class`` a row's features go into the slice of its
        class, and the answer has a first dimension for the classes.
        """
        _check_clip_norm(clip_norm)
        classes = len(self._curator.classes) if by_class else None

        def add(values: Tensor, batch: Batch) -> Tensor:
            return clipped_feature_sum(values, batch, clip_norm, classes)

        total, shape = self._exact_sum(block, features, add, grid_spacing(clip_norm), classes, state)
        shape = shape if classes is None else (classes, *shape)
        sums = with_noise([("sum", total, clip_norm)], self._noise_multiplier(block))
        answer = self._answer(block, sums, {"query": "sum", "shape": shape})
        return answer.view(shape).to(torch.get_default_dtype())

    def noisy_second_moments(
        self, block: str, features: Features, *, clip_norm: float, by_class: bool = False
    ) -> Tensor:
        """The sum over the batch of outer products of feature rows, ``[d, d]`` or ``[classes, d, d]``, plus noise.

        A unit's part is the average over its rows, which are clipped together so that it has at most norm
        ``clip_norm``². The noise of σ·``clip_norm``² is symmetric: off the diagonal its deviation is √2 smaller.
        """
        _check_clip_norm(clip_norm)
        classes = len(self._curator.classes) if by_class else None

        def add(values: Tensor, batch: Batch) -> Tensor:
            return clipped_moment_sum(values, batch, clip_norm, classes)

        total, shape = self._exact_sum(block, features, add, moment_spacing(clip_norm), classes, None)
        size, slices = math.prod(shape), () if classes is None else (classes,)
        vector = half_vector(total.view(classes or 1, -1), size).flatten()
        sums = with_noise([("moments", vector, clip_norm**2)], self._noise_multiplier(block))
        answer = self._answer(block, sums, {"query": "second moments", "shape": (*slices, size, size)})
        return symmetric(answer.view(*slices, -1), size).to(torch.get_default_dtype())

    def _exact_sum(
        self,
        block: str,
        features: Features,
        add: Callable[[Tensor, Batch], Tensor],
        spacing: float,
        classes: int | None,
        state: PrivateState | None,
    ) -> tuple[Tensor, tuple[int, ...]]:
        """What ``add`` makes of all feature rows, over all processes, flat float64; and the shape of a row."""
        self._probe(block, 1, state, lambda batch: self._fix_shape(block, check_rows(features, batch)))
        exact, shape, size = FixedPointSum({"sum": spacing}), None, 0
        # Vectors may be long, and a person has one for each image, and with classes one for each of them.
        vectors = max(self._curator._units.most_rows, classes or 1) if self._curator._units.most_rows > 1 else 1
        most = _NUMBERS // (vectors * max(1, math.prod(self._curator._shapes[self._event.name, block])))
        for batch, values in self._passes(block, torch.no_grad()(each_row), features, state, most=min(_VECTORS, most)):
            shape = self._fix_shape(block, tuple(values.shape[1:]))
            clipped = add(values.flatten(1), batch)
            exact.add({"sum": clipped.flatten()}, batch.units)
            size = clipped.numel()
        if shape is None:
            raise RuntimeError("a step without a batch")
        limbs = self._over_processes(block, exact.limbs({"sum": size}, self._curator.device))
        return exact.values(limbs, {"sum": size})["sum"], shape

    def update(
        self, state: PrivateState, function: Callable[..., Tensor], *, first: Callable[..., Tensor] | None = None
    ) -> None:
        """``state = function(images, labels, random, state)`` for the batch's records, each from its own row alone.

        For shards, ``state = function(images, labels, weights, random, state)`` with ``[1, rows, ...]`` of a shard and
        ``[1, ...]`` for its state; padding rows have weight 0. A shard whose state still is what it was filled with is
        given to ``first`` instead.
        """
        self._refuse_when_over()
        name, most = f"update {state.name}", max(1, _NUMBERS // math.prod(self._curator.shape))
        if self._event.shards is not None:
            for own in (function,) if first is None else (function, first):
                self._probe(f"{name} {own is first}", 3, state, lambda few, own=own: check_shards(own, few))  # type: ignore[misc]
            for batch, values in self._passes(name, partial(_new_or_known, state, first), function, state, most=most):
                if batch.owners is not None:
                    state._write(batch.owners, values[: len(batch.owners)])
            return
        if first is not None:
            raise ValueError("only shards have another function for their first update")
        self._probe(name, 1, state, lambda batch: check_rows(function, batch))
        for batch, values in self._passes(name, each_row, function, state, most=most):
            if batch.owners is not None:
                real = (batch.weights.flatten() > 0).nonzero()[:, 0]
                state._write(batch.owners[real], values[real])

    def _gradient(
        self, block: str, model: nn.Module, names: list[str], sums: tuple[ClippedSum, ...], public: dict[str, Any]
    ) -> NoisyGradient:
        own = dict(model.named_parameters())
        answer = self._answer(block, sums, {**public, "shapes": {name: tuple(own[name].shape) for name in names}})
        if len({own[name].dtype for name in names}) == 1:
            answer = answer.to(own[names[0]].dtype)  # one cast of the whole is faster than one for each parameter
        return NoisyGradient(model, tuple(names), answer)

    def _noise_multiplier(self, block: str) -> float:
        for planned in self._event.blocks:
            if planned.name == block:
                return planned.noise_multiplier
        raise LookupError(
            f"block {block!r} is not planned for {self._event.name!r}, which has {[b.name for b in self._event.blocks]}"
        )

    def _over_processes(self, block: str, numbers: Tensor) -> Tensor:
        """The sum of these whole numbers over all processes, after the charge.

        Guarantee. Each block is answered once in a step, and the step is charged before any process has the sum.

        The first process takes part in the sum when its ledger is on the disk. So no process has the sum, and none can
        add noise to it, before the charge; and every step has the same number of sums, whatever the coins.
        """
        self._refuse_when_over()
        self._noise_multiplier(block)
        if block in self._answered:
            raise RuntimeError(f"block {block!r} was answered in this step; a second answer would need its own noise")
        if not self._answered:
            self._curator._charge(self._event)
        self._answered.add(block)
        return self._curator._world.all_reduce(numbers)

    def _answer(self, block: str, sums: tuple[ClippedSum, ...], public: Mapping[str, Any]) -> Tensor:
        """Draw the noise of a block whose step was charged."""
        if block not in self._answered:
            raise RuntimeError(f"block {block!r} was not charged")
        return self._curator._release(Query(self._event.name, self.index, block, sums, public))

    def _probe(self, what: str, draws: int, state: PrivateState | None, ask: Callable[[Batch], object]) -> None:
        """Test that the method's function keeps its contract, on random images: a refusal can show nothing private.

        Before the first answer and again at steps that depend on public numbers alone.
        """
        self._once((what,), draws, state, ask, again=self.index == self._event.steps - 1)

    def _once(
        self,
        what: tuple[str, ...],
        draws: int,
        state: PrivateState | None,
        ask: Callable[[Batch], object],
        *,
        again: bool = False,
    ) -> None:
        """Call ``ask`` with random images, the first time or if it is asked ``again``."""
        curator, key = self._curator, (self._event.name, *what)
        if again or key not in curator._probed:
            curator._probed.add(key)
            ask(curator._batches.random(draws, state, *key))

    def _fix_shape(self, block: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an answer is public: the one that the first probe found on random images."""
        fixed = self._curator._shapes.setdefault((self._event.name, block), shape)
        if shape != fixed:
            raise UnsupportedModel(f"the features of {block!r} have another shape than before; it must not change")
        return fixed

    def _on_private_rows(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call code of the method, or fetch records."""
        return on_private_rows(function, *arguments, internal=self._curator._internal)

    def _refuse_when_over(self) -> None:
        if self._over:
            raise RuntimeError("this step is over; its batch can no longer be queried")

    def _finish(self) -> None:
        self._over = True

    def _passes(
        self, what: str, on: Callable[..., Tensor], own: Features, state: PrivateState | None, *, most: int = _VECTORS
    ) -> Iterator[tuple[Batch, Tensor]]:
        """This process's units in passes of one shape, and ``on(own, pass)``, which depends on no row's place."""
        name, function = f"{self._event.name}: {what}", partial(on, own)
        passes, code = self._curator._row_passes, code_of(own)
        size = self._curator._batches.units_in_a_pass(self._event, most=most)
        if self._event.shards is None:
            ask = (f"passes of {what}",), 1, state
            self._once(*ask, lambda few: passes(name, function, few.take(0, size).padded(size), code=code, dry=True))
        for batch in self._batches(what, 1, state, size, padded=True):
            yield batch, self._on_private_rows(partial(passes, code=code), name, function, batch)

    def _batches(
        self, block: str, draws: int, state: PrivateState | None, microbatch_size: int | None, *, padded: bool = False
    ) -> Iterator[Batch]:
        """This process's units; the units of all processes where the batch comes in one piece."""
        if state is not None and state.shards != self._event.shards:
            raise ValueError(f"state {state.name!r} belongs to other owners than {self._event.name!r} queries")
        fetched = self._curator._batches.fetch(
            self._event,
            self.index,
            self._batch if microbatch_size is None else self._curator._world.own(self._batch),
            block=block,
            draws=draws,
            state=state,
            microbatch_size=microbatch_size,
            padded=padded,
        )
        # What memory or a disk refuses is told with sizes.
        while (batch := self._on_private_rows(next, fetched, None)) is not None:
            yield batch


def _new_or_known(
    state: PrivateState, first: Callable[..., Tensor] | None, function: Callable[..., Tensor], batch: Batch
) -> Tensor:
    """The new states of a pass of shards. All of a pass are computed either way: a shape says nothing of the others."""
    values = each_shard(function, batch)
    if first is None or batch.state is None or not batch.units:
        return values
    before = batch.state.unflatten(0, batch.weights.shape)[:, 0]
    new = state._unchanged(before) & (batch.weights > 0).any(1)  # padding has no rows
    if not bool(new.any()):
        return values
    return torch.where(new.view(-1, *[1] * (values.dim() - 1)), each_shard(first, batch), values)


def _check_clip_norm(clip_norm: float) -> None:
    if not (math.isfinite(clip_norm) and clip_norm > 0):
        raise ValueError(f"clip_norm must be a positive number, not {clip_norm}")
