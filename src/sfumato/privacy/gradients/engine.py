"""The sum of clipped per-example gradients, exact, by the fastest sound way.

1. Tracing, when every use of every trainable parameter is understood: each layer's gradients per record or by ghost
   clipping, as public shapes say.
2. ``torch.func`` in microbatches, for any other loss that it can trace.
3. Refusal, with the reason.

The first time a model, a loss and their shapes are seen, a few units are also taken one at a time, and the fast way
must agree with that loop; and a microbatch is taken in several orders, which must give the same bits (``row_order``).
Both are done on random images of the same shape, so that no choice depends on private data; whether a microbatch is
compiled follows from what the sums of the model have asked for, not from what their batches held.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.agreement import (
    Run,
    deterministic,
    few_units,
    gradients_agree,
    units_multiple,
)
from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.clip import clip_and_sum
from sfumato.privacy.gradients.compiled import CompiledMicrobatch, comes_again, compiled_microbatch
from sfumato.privacy.gradients.contribution import Contribution
from sfumato.privacy.gradients.errors import NothingToCompare, UnsupportedModel, UntracedUse
from sfumato.privacy.gradients.fixed_point import FixedPointSum, grid_spacing
from sfumato.privacy.gradients.groups import Clip, groups_of
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
from sfumato.privacy.gradients.vmap import VmapGradients

FEW = 3
"""Units that are taken one at a time when something is seen for the first time."""

MOST_VMAP_UNITS = 64


@dataclass
class Known:
    """What was found out about a model under a loss."""

    signatures: set[tuple[object, ...]] = field(default_factory=set)
    untraced: str | None = None
    vmap_agrees: bool = False
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
    stacked: bool | None = None,
    performance: Performance | None = None,
) -> dict[str, Tensor]:
    """Parameter name → sum over units of the clipped gradient, in float64; zeros where there are no units."""
    total = GradientSum(
        model, loss, clip_norm, microbatch_size=microbatch_size, stacked=stacked, performance=performance
    )
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
        stacked: whether the models of a ``PerClass`` go in one pass; by default on a GPU only.
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
        stacked: bool | None = None,
        performance: Performance | None = None,
    ) -> None:
        if microbatch_size is not None and microbatch_size < 1:
            raise ValueError(f"a microbatch must hold at least one unit, not {microbatch_size}")
        refuse_mixing(model)
        self.groups = groups_of(model, clip_norm)
        self.model, self.loss = model, loss
        self.performance = performance or Performance()
        self._compression = clip_norm if isinstance(clip_norm, Compressed) else None
        self._size, self._expected, self._stacked = microbatch_size, expected_units, stacked
        self.compiles = not isinstance(model, PerClass) and comes_again(model, loss, self.groups, self.performance)
        self._total = self._empty()
        self._runs: dict[tuple[int, int, bool], Run] = {}

    def prepare(self, batch: Batch) -> None:
        """Decide on random images how batches of their shapes are run, so that what is warned of shows no record."""
        stacked = self._stacks(batch)
        known = self._knowledge(batch, stacked)
        with deterministic(batch.images.device, self.performance):
            try:
                if known.untraced is None:
                    next(self._planned(batch, known, stacked=stacked), None)
            except NothingToCompare:
                pass
            except UntracedUse as reason:
                known.untraced = str(reason)
            if known.untraced is not None:
                next(self._planned_vmap(batch, known), None)

    def add(self, batch: Batch) -> None:
        """Add the clipped gradients of these units."""
        if batch.units == 0:
            return
        stacked = self._stacks(batch)
        known = self._knowledge(batch, stacked)
        with deterministic(batch.images.device, self.performance):
            if known.untraced is None:
                try:
                    self._total.merge(self._sum(self._planned(batch, known, stacked=stacked)))
                    return
                except NothingToCompare:
                    pass
                except UntracedUse as reason:
                    known.untraced = str(reason)
            self._total.merge(self._sum(self._planned_vmap(batch, known)))

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

    def _stacks(self, batch: Batch) -> bool:
        stacked = batch.images.device.type == "cuda" if self._stacked is None else self._stacked
        return stacked and isinstance(self.model, PerClass) and len(self.model) > 1 and self.model.stackable()

    def _knowledge(self, batch: Batch, stacked: bool) -> Known:
        shape = (tuple(batch.images.shape[1:]), batch.images.dtype, batch.rows_per_unit, batch.images.device)
        used = arithmetic((p.dtype for p in trainable_parameters(self.model).values()), batch.images.device)
        form = (self.performance.dtype, self.performance.channels_last, used.name)
        key = (code_of(self.loss), *shape, stacked, *form, self._compression is not None)
        known = _known.setdefault(self.model, {}).setdefault(key, Known())
        if self._compression is not None:
            known.untraced = "only a whole gradient can be compressed"
        return known

    def _units(self, batch: Batch, known: Known) -> int:
        """Units of a microbatch, from public numbers only."""
        if self._size is not None:
            return self._size
        device = batch.images.device
        models = len(self.model) if isinstance(self.model, PerClass) else 1
        rows = self.performance.most_rows(device) // batch.rows_per_unit
        fits = int(self.performance.bytes(device) / max(known.bytes_per_unit, 1.0))
        expected = self.performance.usual_units(device) if self._expected is None else self._expected
        most = min(rows, fits) // (models if self._stacks(batch) else 1)
        size = microbatch_size(expected / models, most=most, multiple=units_multiple(device, batch.rows_per_unit))
        return FEW + 1 if size == FEW else size

    def _sum(self, planned: Iterator[tuple[Microbatch, Run]]) -> FixedPointSum:
        total = self._empty()
        for micro, run in planned:
            total.add(run(micro), micro.units)
        return total

    def _planned(self, batch: Batch, known: Known, *, stacked: bool) -> Iterator[tuple[Microbatch, Run]]:
        """Every microbatch and how it is run: one way for each shape, so that no unit's bits depend on its place."""
        if not known.signatures:
            # Another number of rows than the microbatches have: equal shapes cannot be a coincidence then.
            few = next(microbatches(self.model, batch, FEW - (self._size == FEW), stacked=stacked), None)
            if few is not None:
                self._learn(public_copy(few), known)
        size = self._units(batch, known)
        for micro in microbatches(self.model, batch, size, stacked=stacked):
            shape = (batch.rows_per_unit, size, micro.shared)
            if shape not in self._runs:
                self._runs[shape] = self._choose(micro, known)
            yield micro, self._runs[shape]

    def _choose(self, micro: Microbatch, known: Known) -> Run:
        eager: Run = functools.partial(self._eager, known=known)
        run, kind = eager, "shared" if micro.shared else "eager"
        if self.compiles:
            own = known.compiled
            if not known.uncompiled and not (own and own.serves(micro, self.loss, self.groups)):
                own = compiled_microbatch(public_copy(micro), self.loss, self.groups, self.performance, eager)
                known.compiled, known.uncompiled = own, own is None
                known.row_order.forget("compiled")
            run, kind = (run, kind) if own is None else (own, "compiled")
        return known.row_order.choose(run, micro, kind=kind, eager=eager)

    def _eager(self, micro: Microbatch, known: Known) -> dict[str, Tensor]:
        passes = [self._pass(part) for part in micro.parts]
        for part, one in zip(micro.parts, passes, strict=True):
            if one.signature not in known.signatures:
                self._learn(public_copy(Microbatch((few_units(part, 2),), micro.shared)), known)
            if one.signature not in known.signatures:
                raise NothingToCompare("no random image has a gradient to compare with the loop")
        return clip_and_sum(micro, [one.contributions for one in passes], self.groups)

    def _pass(self, part: Part) -> TracedPass:
        return TracedPass(part, self.loss, channels_last=self.performance.channels_last)

    def _learn(self, micro: Microbatch, known: Known) -> None:
        """Take a few units by tracing and one at a time; agreement makes their shapes known."""
        for part in micro.parts:
            traced, loop = self._pass(part), PerExampleLoop(part, self.loss)
            known.bytes_per_unit = max(known.bytes_per_unit, traced.bytes_per_unit)
            agree = gradients_agree(traced.contributions, loop.contributions, part)
            if agree is False:
                raise UntracedUse("the traced gradients disagree with the loop on a few records")
            if agree:
                known.signatures.add(traced.signature)

    def _planned_vmap(self, batch: Batch, known: Known) -> Iterator[tuple[Microbatch, Run]]:
        """The same by ``torch.func``, in microbatches for which every unit's gradient fits into memory."""
        numel = sum(p.numel() for p in trainable_parameters(self.model).values())
        fits = int(self.performance.bytes(batch.images.device) / (16 * numel))
        size = max(1, min(MOST_VMAP_UNITS, fits, self._size or MOST_VMAP_UNITS))
        size = size - size % units_multiple(batch.images.device, batch.rows_per_unit) or size
        run: Run = functools.partial(self._vmap_sums, known=known)
        for micro in microbatches(self.model, batch, size, stacked=False):
            if not known.vmap_agrees:
                few = public_copy(Microbatch((few_units(micro.parts[0], FEW),), micro.shared))
                known.vmap_agrees = self._check_vmap(few.parts[0], known)
            kind = "shared by torch.func" if micro.shared else "torch.func"
            yield micro, known.row_order.choose(run, micro, kind=kind, eager=run)

    def _vmap_sums(self, micro: Microbatch, known: Known) -> dict[str, Tensor]:
        return clip_and_sum(micro, [self._vmap(p, known, self._compression) for p in micro.parts], self.groups)

    def _check_vmap(self, few: Part, known: Known) -> bool:
        if gradients_agree(self._vmap(few, known, None), PerExampleLoop(few, self.loss).contributions, few) is False:
            raise UnsupportedModel(
                "the gradients of a few records disagree with the same records taken one at a time: a record's "
                "loss depends on other rows, on the size of the batch or on torch's global generator. Let every "
                "row's loss depend on that row, the model and `random` alone"
            )
        return True

    def _vmap(self, part: Part, known: Known, compression: Compressed | None) -> dict[str, Contribution]:
        try:
            return VmapGradients(part, self.loss, compression).contributions
        except (UnsupportedModel, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, AttributeError, NotImplementedError, ValueError) as error:
            raise UnsupportedModel(
                f"neither tracing nor torch.func understands this loss: tracing says {known.untraced!r}, torch.func "
                f"raises {type(error).__name__}. Use the parameters in layers the engine knows (linear, convolution, "
                "embedding, normalisation, element-wise scales), or write the loss so that torch.func.vmap can "
                "trace it (differentiate with torch.func.grad, vjp or jvp, not with torch.autograd.grad)"
            ) from None
