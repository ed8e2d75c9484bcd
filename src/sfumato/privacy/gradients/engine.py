"""The sum of clipped per-example gradients, exact, by the fastest way that understands the loss.

1. One traced pass: inputs and output gradients of layers, and a copy of every other parameter for each row.
2. ``torch.func.grad`` in microbatches, for a loss that differentiates the network, and for compression.
3. Refusal, with the reason.

Either way the loss sees one row (``one_row``). Which way is taken is found out on random images of the same shape, as
is the form of it in which every unit gives the same bits at every place (``places``), so that no choice depends on
private data. Before the first private row, and at the last step, ``check`` compares the traced pass with
``torch.func.grad``.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sfumato.privacy.gradients.batch import (
    Batch,
    Clip,
    Compressed,
    Loss,
    Microbatch,
    Part,
    PerClass,
    groups_of,
    microbatch_size,
    microbatches,
)
from sfumato.privacy.gradients.compiled import CompiledMicrobatch, comes_again, compiled_microbatch
from sfumato.privacy.gradients.layers import (
    TracedPass,
    losses,
    refuse_outside_use,
    trainable_parameters,
    weighted_loss,
)
from sfumato.privacy.gradients.one_row import (
    UnsupportedModel,
    UntracedUse,
    each_row,
    each_shard,
    first_call,
    one_group,
    refuse_mixing,
)
from sfumato.privacy.gradients.performance import (
    Performance,
    deterministic,
    roundoff,
    tolerance,
    units_multiple,
    without_tf32,
)
from sfumato.privacy.gradients.places import Places, RowOrderWarning, Run, public_copy
from sfumato.privacy.sums import Contribution, FixedPointSum, PerExample, clip_and_sum, grid_spacing

FEW = 3
"""Units on which the way to the gradients is found out."""

PROBED = 6
"""Units of random images in a check."""

MOST_VMAP_UNITS = 64


@dataclass
class Known:
    """What was found out about a model under a loss, on random images."""

    learnt: bool = False
    traced: bool = True
    untraced: str | None = None
    """Why tracing was given up."""
    bytes_per_unit: float = 0.0
    places: Places = field(default_factory=Places)
    compiled: CompiledMicrobatch | None = None
    uncompiled: bool = False
    """Whether compiling failed, or gave other sums."""


def code_of(function: object) -> object:
    """What tells functions apart that are made anew at every step: their code, or the class of a callable object."""
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or type(function)


_known: weakref.WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Known]] = weakref.WeakKeyDictionary()


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    clip_norm: Clip,
    *,
    microbatch_size: int | None = None,
    performance: Performance | None = None,
) -> dict[str, Tensor]:
    """Parameter name → sum over units of the clipped gradient, in float64; zeros where there are no units."""
    total = GradientSum(model, loss, clip_norm, microbatch_size=microbatch_size, performance=performance)
    total.add(batch)
    return total.values()


class GradientSum:
    """The sum over several batches.

    Args:
        model: the network; ``loss(model, images, labels, random)`` gives one number for each row.
        loss: see :data:`Loss`. For a compiled microbatch it must be a pure function of its arguments.
        clip_norm: one clip norm, or one for each group of parameters.
        microbatch_size: units in every pass, a public number. By default it follows from ``expected_units`` and from
            the memory of ``performance``.
        expected_units: how many units a batch is expected to have, a public number.
        performance: arithmetic, compilation and memory. None of these changes the mechanism.

    ``compiles``: whether microbatches are compiled, from the second sum of a loss on; class models stay eager.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clip_norm: Clip,
        *,
        microbatch_size: int | None = None,
        expected_units: float | None = None,
        performance: Performance | None = None,
    ) -> None:
        if microbatch_size is not None and microbatch_size < 1:
            raise ValueError(f"a microbatch must hold at least one unit, not {microbatch_size}")
        refuse_mixing(model)
        self.groups = groups_of(model, clip_norm)
        self.model, self.loss = model, loss
        self.performance = performance or Performance()
        self._compression = clip_norm if isinstance(clip_norm, Compressed) else None
        self._size, self._expected = microbatch_size, expected_units
        self.compiles = not isinstance(model, PerClass) and comes_again(model, loss, self.groups, self.performance)
        self.total = self._empty()
        self._runs: dict[tuple[int, bool], Run] = {}

    def prepare(self, batch: Batch) -> None:
        """Decide on random images how batches of their shapes are run, so that what is warned of shows no record."""
        with deterministic(batch.images.device, self.performance):
            next(self._planned(batch), None)

    def add(self, batch: Batch) -> None:
        """Add the clipped gradients of these units."""
        with deterministic(batch.images.device, self.performance):
            try:
                found = self._sum(batch)
            except UntracedUse as error:  # of a function that differs from the one that was tried on random images
                known = self._knowledge(batch)
                known.traced, known.untraced = False, str(error)
                self._runs.clear()
                found = self._sum(batch)
            self.total.merge(found)

    def _sum(self, batch: Batch) -> FixedPointSum:
        total = self._empty()
        for micro, run in self._planned(batch):
            total.add(run(micro), micro.units)
        return total

    def limbs(self) -> Tensor:
        """The total in whole numbers, to be added up with those of other processes (``FixedPointSum.limbs``)."""
        parameters = trainable_parameters(self.model)
        device = next(iter(parameters.values())).device
        return self.total.limbs({name: p.numel() for name, p in parameters.items()}, device)

    def values(self, limbs: Tensor | None = None) -> dict[str, Tensor]:
        """Parameter name → the total, in float64 and in the parameter's shape; of all processes, from their limbs."""
        parameters = trainable_parameters(self.model)
        sizes = {name: p.numel() for name, p in parameters.items()}
        found = self.total.values(self.limbs() if limbs is None else limbs, sizes)
        return {name: found[name].view_as(p) for name, p in parameters.items()}

    def _empty(self) -> FixedPointSum:
        return FixedPointSum({n: grid_spacing(clip) for clip, names in self.groups.values() for n in names})

    def _knowledge(self, batch: Batch) -> Known:
        shape = (tuple(batch.images.shape[1:]), batch.images.dtype, batch.rows_per_unit, batch.images.device)
        used = roundoff((p.dtype for p in trainable_parameters(self.model).values()), batch.images.device)
        key = (code_of(self.loss), *shape, self.performance.dtype, used, self._compression is not None)
        return _known.setdefault(self.model, {}).setdefault(key, Known())

    def _units(self, batch: Batch, known: Known) -> int:
        """Units of a microbatch, from public numbers only."""
        device, multiple = batch.images.device, units_multiple(batch.images.device, batch.rows_per_unit)
        if not known.traced:
            numel = sum(p.numel() for p in trainable_parameters(self.model).values())
            fits = int(self.performance.bytes(device) / (16 * numel))
            size = max(1, min(MOST_VMAP_UNITS, fits, self._size or MOST_VMAP_UNITS))
            return size - size % multiple or size
        if self._size is not None:
            return self._size
        models = len(self.model) if isinstance(self.model, PerClass) else 1
        rows = self.performance.most_rows(device) // batch.rows_per_unit
        fits = int(self.performance.bytes(device) / max(known.bytes_per_unit, 1.0))
        expected = self.performance.usual_units(device) if self._expected is None else self._expected
        return microbatch_size(expected / models, most=min(rows, fits), multiple=multiple)

    def _planned(self, batch: Batch) -> Iterator[tuple[Microbatch, Run]]:
        """Every microbatch and how it is run: one way for each shape, so that no unit's bits depend on its place."""
        if batch.units == 0:
            return
        known = self._knowledge(batch)
        if not known.learnt:
            few = next(microbatches(self.model, batch, FEW))
            self._learn(public_copy(few).parts[0], known)
        size = self._units(batch, known)
        for micro in microbatches(self.model, batch, size):
            shape = (batch.rows_per_unit, micro.shared)
            if shape not in self._runs:
                self._runs[shape] = self._choose(micro, known)
            yield micro, self._runs[shape]

    def _choose(self, micro: Microbatch, known: Known) -> Run:
        eager: Run = functools.partial(self._eager, known=known)
        run, kind = eager, "traced" if known.traced else "torch.func"
        if self.compiles and known.traced and not micro.shared:
            own = known.compiled
            if not known.uncompiled and not (own and own.serves(micro, self.loss, self.groups)):
                own = compiled_microbatch(public_copy(micro), self.loss, self.groups, self.performance, eager)
                known.compiled, known.uncompiled = own, own is None
                known.places.forget("compiled")
            run, kind = (run, kind) if own is None else (own, "compiled")
        return known.places.choose(run, micro, key=(kind, micro.shared), what="", eager=eager)

    def _eager(self, micro: Microbatch, known: Known) -> dict[str, Tensor]:
        found = [self._contributions(part, known) for part in micro.parts]
        return clip_and_sum(micro, found, self.groups)

    def _contributions(self, part: Part, known: Known) -> dict[str, Contribution]:
        if known.traced:
            return TracedPass(part, self.loss).contributions
        return vmap_gradients(part, self.loss, self._compression)

    def _learn(self, part: Part, known: Known) -> None:
        """Find out on random images whether tracing understands the loss, and otherwise ``torch.func``."""
        with first_call():
            try:
                if self._compression is not None:
                    raise UntracedUse("only a whole gradient can be compressed")
                known.bytes_per_unit = TracedPass(part, self.loss).bytes_per_unit
            except UntracedUse as error:
                known.traced, known.untraced = False, str(error)
                with _explained():
                    vmap_gradients(part, self.loss)
        known.learnt = True


# The oracle, and the way for losses that tracing does not understand


def vmap_gradients(part: Part, loss: Loss, compression: Compressed | None = None) -> dict[str, Contribution]:
    """The contributions of one part of a batch, every unit's gradient held whole."""
    _check_outside_use(part, loss)
    gradients = _gradients(part, loss)
    if compression is not None:
        gradients = compression(gradients)
    return {name: PerExample(gradient.flatten(1)) for name, gradient in gradients.items()}


def _check_outside_use(part: Part, loss: Loss) -> None:
    """A parameter that the loss reaches by another way would look like a constant to torch.func."""
    model, first = part.model, part.batch.take(0, 1)
    real = trainable_parameters(model)
    plain = {name: p.detach() for name, p in real.items()}
    with torch.enable_grad():
        value = weighted_loss(losses(model, loss, first, plain), first)
        if value.requires_grad:
            reached = torch.autograd.grad(value, list(real.values()), allow_unused=True)
            refuse_outside_use([name for name, g in zip(real, reached, strict=True) if g is not None])


def _gradients(part: Part, loss: Loss) -> dict[str, Tensor]:
    """Parameter name → ``[units, *shape]``."""
    batch = part.batch
    plain = {name: p.detach() for name, p in trainable_parameters(part.model).items()}

    def unit_loss(values: dict[str, Tensor], *fields: Tensor) -> Tensor:
        images, labels, rows, draw, weights = fields[:5]
        random = replace(batch.random, rows=rows, draw=draw)
        one = Batch(images, labels, random, weights[None], fields[5] if len(fields) > 5 else None)
        return weighted_loss(losses(part.model, loss, one, values), one)

    fields = [batch.images, batch.labels, batch.random.rows, batch.random.draw, batch.weights.flatten()]
    if batch.state is not None:
        fields.append(batch.state)
    by_unit = [field.view(*batch.weights.shape, *field.shape[1:]) for field in fields]
    dims = (None, *(0 for _ in by_unit))
    gradients = vmap(grad(unit_loss), in_dims=dims, randomness="error")(plain, *by_unit)
    return {name: gradient.detach() for name, gradient in gradients.items()}


def oracle_sum(model: nn.Module, loss: Loss, batch: Batch, clip_norm: Clip) -> dict[str, Tensor]:
    """``clipped_sum`` by ``torch.func.grad``, each unit's gradient formed whole: the traced pass must agree with it."""
    groups, total = groups_of(model, clip_norm), GradientSum(model, loss, clip_norm)
    for micro in microbatches(model, batch, batch.units):
        compression = clip_norm if isinstance(clip_norm, Compressed) else None
        found = [vmap_gradients(part, loss, compression) for part in micro.parts]
        total.total.add(clip_and_sum(micro, found, groups), micro.units)
    return total.values()


# Checks on random images


@contextmanager
def _explained() -> Iterator[None]:
    """What torch says of a function that it cannot run for one row."""
    try:
        yield
    except (UnsupportedModel, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"the function was refused on random images ({type(error).__name__}: {error}). It sees one row under "
            "torch.func.vmap: it may not turn values into Python numbers, branch on them, index by masks, draw from a "
            "global generator, write to tensors of before or use torch.autograd.grad (use torch.func.grad)"
        ) from None


@without_tf32()
def check(model: nn.Module, loss: Loss, batch: Batch, clip: Clip) -> None:
    """Refuse a model or loss that cannot be run for one row, or whose traced sum is not that of ``torch.func``."""
    refuse_mixing(model)
    few = batch.take(0, min(PROBED, batch.units))
    if few.units == 0:
        return
    with _explained(), warnings.catch_warnings():
        # So few rows hardly fill a vector register. The order of rows is checked again at the size of the training.
        warnings.simplefilter("ignore", RowOrderWarning)
        fast = clipped_sum(model, loss, few, clip, microbatch_size=few.units, performance=Performance(compile=False))
        plain = oracle_sum(model, loss, few, clip)
    apart = sum(float((fast[name] - plain[name]).square().sum()) for name in plain) ** 0.5
    size = sum(float(value.square().sum()) for value in plain.values()) ** 0.5
    allowed = tolerance((p.dtype for p in model.parameters()), batch.images.device) * size + 1e-12
    if apart > allowed:  # not a number on both sides is the same
        raise UnsupportedModel(
            "the fast sum of clipped gradients disagrees with torch.func.grad on a few random records. Please report "
            "the model"
        )


@without_tf32()
def check_rows(function: Callable[..., Tensor], batch: Batch) -> tuple[int, ...]:
    """Refuse a function ``(images, labels, random[, state]) -> [1, ...]`` that cannot be run for one row.

    Returns the shape of one row's result, which is public: it was computed from random images.
    """
    return tuple(_twice(lambda: each_row(function, batch)).shape[1:])


@without_tf32()
def check_shards(function: Callable[..., Tensor], batch: Batch) -> None:
    """Refuse a function of shards that cannot be run for one shard."""
    _twice(lambda: each_shard(function, batch))


@without_tf32()
def check_group(model: nn.Module, loss: Callable[..., Tensor], batch: Batch) -> None:
    """Refuse a group's loss that cannot be run for one group."""
    refuse_mixing(model)
    _twice(lambda: one_group(loss, model, batch.images, batch.labels, batch.random))


def _twice(call: Callable[[], Tensor]) -> Tensor:
    """A first call may fill caches; from the second on Python state must not change."""
    with _explained():
        with first_call():
            before = call()
        after = call()
    if not torch.equal(before.nan_to_num(), after.nan_to_num()):
        raise UnsupportedModel("the function gives other numbers for the same rows the second time")
    return after


# Functions of rows


class RowPasses:
    """Runs features and updates of private state so that a unit gives the same bits at every place of a pass."""

    def __init__(self) -> None:
        self._places = Places(by_row=True)

    def __call__(
        self, what: str, function: Callable[[Batch], Tensor], batch: Batch, *, code: object = None, dry: bool = False
    ) -> Tensor:
        """A result for each row, or unit. Another ``code`` under the name ``what`` is tested anew; ``dry`` only tests.

        Each function and shape of a pass is tested on random images, so that what is warned of shows no record.
        """
        if not batch.units:
            return function(batch)

        def run(micro: Microbatch) -> dict[str, Tensor]:
            return {what: function(micro.parts[0].batch)}

        images, micro = batch.images, Microbatch((Part(nn.Identity(), "", batch),))
        key = (what, code, images.shape, images.dtype, images.device)
        with deterministic(images.device, Performance()):
            way = self._places.choose(run, micro, key=key, what=repr(what), eager=run)
            return images.new_zeros(0) if dry else way(micro)[what]
