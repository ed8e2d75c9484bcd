"""The sum of clipped per-example gradients, exact, by the fastest way that understands the loss.

1. Tracing: inputs and output gradients of layers, and a copy of every other parameter for each row.
2. ``torch.func.grad`` in microbatches, for a loss that differentiates the network.
3. Refusal, with the reason.

Either way the loss sees one row (``isolation``). The first time a model, a loss and their shapes are seen, a few units
are also taken one at a time without ``torch.func``, and the fast way must agree with that loop; and a microbatch is
taken in several orders, which must give the same bits (``row_order``). Both are done on random images of the same
shape, so that no choice depends on private data; whether a microbatch is compiled follows from what the sums of the
model have asked for, not from what their batches held.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn

from sfumato.privacy.gradients.agreement import Run, deterministic, gradients_agree, units_multiple
from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.clip import clip_and_sum
from sfumato.privacy.gradients.compiled import CompiledMicrobatch, comes_again, compiled_microbatch
from sfumato.privacy.gradients.contribution import Contribution
from sfumato.privacy.gradients.errors import UnsupportedModel, UntracedUse
from sfumato.privacy.gradients.fixed_point import FixedPointSum, grid_spacing
from sfumato.privacy.gradients.groups import Clip, groups_of
from sfumato.privacy.gradients.isolation import first_call
from sfumato.privacy.gradients.loop import PerExampleLoop
from sfumato.privacy.gradients.microbatches import Microbatch, microbatch_size, microbatches
from sfumato.privacy.gradients.mixing import refuse_mixing
from sfumato.privacy.gradients.per_class import Part, PerClass
from sfumato.privacy.gradients.performance import Performance
from sfumato.privacy.gradients.rounding import arithmetic
from sfumato.privacy.gradients.row_order import RowOrder, public_copy
from sfumato.privacy.gradients.sparsify import Compressed
from sfumato.privacy.gradients.task import code_of, trainable_parameters
from sfumato.privacy.gradients.traced import TracedPass
from sfumato.privacy.gradients.vmap import vmap_gradients

FEW = 3
"""Units that are taken one at a time when something is seen for the first time."""

MOST_VMAP_UNITS = 64

Gradients = Callable[[Part], dict[str, Contribution]]


@dataclass
class Known:
    """What was found out about a model under a loss, on random images."""

    gradients: Gradients | None = None
    """The way to the gradients, once it has agreed with the loop."""
    traced: bool = True
    untraced: str | None = None
    """Why tracing was given up."""
    bytes_per_unit: float = 0.0
    row_order: RowOrder = field(default_factory=RowOrder)
    compiled: CompiledMicrobatch | None = None
    uncompiled: bool = False
    """Whether compiling failed, or gave other sums."""


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
        self._total = self._empty()
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
            self._total.merge(found)

    def _sum(self, batch: Batch) -> FixedPointSum:
        total = self._empty()
        for micro, run in self._planned(batch):
            total.add(run(micro), micro.units)
        return total

    def limbs(self) -> Tensor:
        """The total in whole numbers, to be added up with those of other processes (``FixedPointSum.limbs``)."""
        parameters = trainable_parameters(self.model)
        device = next(iter(parameters.values())).device
        return self._total.limbs({name: p.numel() for name, p in parameters.items()}, device)

    def values(self, limbs: Tensor | None = None) -> dict[str, Tensor]:
        """Parameter name → the total, in float64 and in the parameter's shape; of all processes, from their limbs."""
        parameters = trainable_parameters(self.model)
        sizes = {name: p.numel() for name, p in parameters.items()}
        found = self._total.values(self.limbs() if limbs is None else limbs, sizes)
        return {name: found[name].view_as(p) for name, p in parameters.items()}

    def _empty(self) -> FixedPointSum:
        return FixedPointSum({n: grid_spacing(clip) for clip, names in self.groups.values() for n in names})

    def _knowledge(self, batch: Batch) -> Known:
        shape = (tuple(batch.images.shape[1:]), batch.images.dtype, batch.rows_per_unit, batch.images.device)
        used = arithmetic((p.dtype for p in trainable_parameters(self.model).values()), batch.images.device)
        form = (self.performance.dtype, self.performance.channels_last, used.name)
        key = (code_of(self.loss), *shape, *form, self._compression is not None)
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
        if known.gradients is None:
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
        run, kind = eager, f"traced {known.traced}, shared {micro.shared}"
        if self.compiles and known.traced and not micro.shared:
            own = known.compiled
            if not known.uncompiled and not (own and own.serves(micro, self.loss, self.groups)):
                own = compiled_microbatch(public_copy(micro), self.loss, self.groups, self.performance, eager)
                known.compiled, known.uncompiled = own, own is None
                known.row_order.forget("compiled")
            run, kind = (run, kind) if own is None else (own, "compiled")
        return known.row_order.choose(run, micro, kind=kind, eager=eager)

    def _eager(self, micro: Microbatch, known: Known) -> dict[str, Tensor]:
        ways = self._traced if known.traced else self._by_func
        return clip_and_sum(micro, [ways(part) for part in micro.parts], self.groups)

    def _traced(self, part: Part) -> dict[str, Contribution]:
        return TracedPass(part, self.loss, channels_last=self.performance.channels_last).contributions

    def _by_func(self, part: Part) -> dict[str, Contribution]:
        return vmap_gradients(part, self.loss, self._compression)

    def _learn(self, part: Part, known: Known) -> None:
        """Take a few units by tracing or by ``torch.func``, and one at a time, which must agree."""
        reason = "only a whole gradient can be compressed"
        loop = PerExampleLoop(part, self.loss).contributions
        with first_call():
            if self._compression is None:
                try:
                    traced = TracedPass(part, self.loss, channels_last=self.performance.channels_last)
                    known.bytes_per_unit = traced.bytes_per_unit
                    if gradients_agree(traced.contributions, loop, part) is not False:
                        known.gradients = self._traced
                        return
                    reason = "the traced gradients disagree with the loop on a few records"
                except UntracedUse as error:
                    reason = str(error)
            known.traced, known.untraced = False, reason
            try:
                found = vmap_gradients(part, self.loss)
            except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
                raise UnsupportedModel(_NOT_UNDERSTOOD.format(type(error).__name__, error)) from None
        if gradients_agree(found, loop, part) is False:
            raise UnsupportedModel(
                "the gradients of a few records disagree with the same records taken one at a time: a layer behaves "
                "otherwise under torch.func.vmap, or the loss draws from a generator other than `random`"
            )
        known.gradients = self._by_func


_NOT_UNDERSTOOD = (
    "the loss was refused on random images: torch.func.vmap cannot run it for one row ({}: {}). A loss may not turn "
    "values into Python numbers, branch on them, index by masks, draw from a global generator or write to tensors of "
    "before; differentiate with torch.func.grad, vjp or jvp, not with torch.autograd.grad"
)
