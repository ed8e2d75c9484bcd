"""The front: the fastest sound way to the sum of clipped gradients, chosen by itself.

1. Book-keeping, when every use of every trainable parameter is understood.
2. ``torch.func`` in microbatches, for anything else it can trace.
3. Refusal, with the reason.

The first time a model, a loss and their shapes are seen, a few units are also taken through the plain loop, and the
fast way must agree with it. That the first dimension of every tensor is the batch is known because the same shapes
came up at another number of rows.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.errors import UnsupportedModel, UntracedUse
from sfumato.privacy.gradients.ghost import GhostClipping
from sfumato.privacy.gradients.groups import Clip, groups_of
from sfumato.privacy.gradients.loop import PerExampleLoop
from sfumato.privacy.gradients.mixing import refuse_mixing
from sfumato.privacy.gradients.per_class import PerClass
from sfumato.privacy.gradients.per_example import Groups, PerExampleGradients
from sfumato.privacy.gradients.rounding import BRAIN, DOUBLE, HALF, TENSOR_FLOAT, Arithmetic, arithmetic
from sfumato.privacy.gradients.sparsify import Compressed
from sfumato.privacy.gradients.vmap import VmapGradients

FEW = 3
"""Units that go through the loop when something is seen for the first time."""

VMAP_MICROBATCH = 64
"""Units whose gradients the torch.func path holds at once, at most."""


@dataclass
class _Known:
    """What was found out about a model under a loss."""

    signatures: set[tuple[object, ...]] = field(default_factory=set)
    unseen: str | None = None
    functional: bool = False
    bytes_per_unit: float = 0.0
    tied: bool | None = None


_known: weakref.WeakKeyDictionary[nn.Module, dict[tuple[object, ...], _Known]] = weakref.WeakKeyDictionary()


def clipped_sum(
    model: nn.Module,
    loss: Loss,
    batch: Batch,
    clip: Clip,
    *,
    microbatch_size: int | None = None,
    stacked: bool | None = None,
) -> dict[str, Tensor]:
    """Parameter name → sum over units of the clipped gradient, in float64. No units, no movement: zeros.

    ``microbatch_size`` bounds the units in one pass; by default as many as memory holds. ``stacked`` says whether the
    models of a ``PerClass`` go in one pass; by default on a GPU only. Neither changes the answer beyond rounding.
    """
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(f"a microbatch must hold at least one unit, not {microbatch_size}")
    groups = groups_of(model, clip)
    refuse_mixing(model)
    compression = clip if isinstance(clip, Compressed) else None
    engine = _Engine(
        model, loss, groups, batch, microbatch_size=microbatch_size, stacked=stacked, compression=compression
    )
    total: dict[str, Tensor] = {}
    start = 0
    while start < batch.units:
        size = engine.size(batch)
        engine.add(batch.take(start, min(batch.units, start + size)), total)
        start += size
    return {
        name: total[name].view_as(p) if name in total else torch.zeros_like(p, dtype=torch.float64, requires_grad=False)
        for name, p in engine.trainable.items()
    }


def pass_over(model: nn.Module, loss: Loss, batch: Batch, clip: Clip) -> PerExampleGradients | None:
    """What is known of each unit's gradient, counted in one piece; None where that is not sound or not at hand."""
    groups = groups_of(model, clip)
    refuse_mixing(model)
    engine = _Engine(model, loss, groups, batch, microbatch_size=None, stacked=False)
    if batch.units == 0 or engine.size(batch) < batch.units:
        return None
    return engine._counted(batch, exact=False)


def _key(loss: Loss, batch: Batch) -> tuple[object, ...]:
    function = getattr(loss, "__func__", loss)
    code = getattr(function, "__code__", None) or type(function)
    return (code, tuple(batch.images.shape[1:]), batch.images.dtype, batch.rows_per_unit, batch.images.device)


class _Engine:
    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        groups: Groups,
        batch: Batch,
        *,
        microbatch_size: int | None,
        stacked: bool | None,
        compression: Compressed | None = None,
    ) -> None:
        self.model, self.loss, self.groups, self.compression = model, loss, groups, compression
        self.trainable: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if stacked is None:
            stacked = batch.images.device.type == "cuda"
        self.stacked = stacked and isinstance(model, PerClass) and len(model) > 1 and model.stackable()
        self.known = _known.setdefault(model, {}).setdefault(
            (*_key(loss, batch), self.stacked, compression is not None), _Known()
        )
        if compression is not None:
            self.known.unseen = "only a whole gradient can be compressed"
        if self.known.tied is None:
            names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
            self.known.tied = len(names) > len(list(model.parameters()))
        self.tied = self.known.tied
        self.microbatch_size = microbatch_size
        self.bounds = [bound for bound, _ in groups.values()]
        self.largest = min(torch.finfo(p.dtype).max for p in self.trainable.values())

    def size(self, batch: Batch) -> int:
        """Units for the next pass."""
        if self.microbatch_size is not None:
            return self.microbatch_size
        if self.known.unseen is None and self.known.bytes_per_unit == 0.0 and batch.units > FEW:
            self._learn(batch)
        device = batch.images.device
        if self.known.unseen is not None:
            return self._functional_size(device)
        if self.known.bytes_per_unit == 0.0:
            return batch.units
        # Inputs and output gradients of every layer are held, other saved tensors and temporaries come on top. Asked
        # every time: a device that others fill now may be empty a moment later.
        return max(1, int(_free(device) / (4.0 * self.known.bytes_per_unit)))

    def _functional_size(self, device: torch.device) -> int:
        numel = sum(p.numel() for p in self.trainable.values())
        return max(1, min(VMAP_MICROBATCH, int(_free(device) / (numel * 16.0))))

    def add(self, batch: Batch, total: dict[str, Tensor], *, exact: bool = False, again: bool = False) -> None:
        """Add the clipped gradients of these units."""
        if batch.units == 0:
            return
        done = self._counted(batch, exact=exact)
        if done is not None:
            self._finish(done, batch, total, exact=exact, again=again)
            return
        size = self._functional_size(batch.images.device)
        for start in range(0, batch.units, size):
            part = batch.take(start, min(batch.units, start + size))
            self._finish(self._functional(part), part, total, exact=True, again=again)

    def _finish(
        self, done: PerExampleGradients, batch: Batch, total: dict[str, Tensor], *, exact: bool, again: bool
    ) -> None:
        norms = done.squared.sqrt()
        # NaN compares false; a norm beyond the parameters' own range means a gradient that overflowed.
        finite = (norms <= self.largest).all(0)
        safe = done.arithmetic.safe(norms, done.spread)
        factor = torch.stack([bound / row for bound, row in zip(self.bounds, safe, strict=True)]).clamp(max=1.0)
        sums: dict[str, Tensor] = {}
        done.add_weighted(factor, sums)
        # Asked last, because the answer waits for the device; what is not sound has been added to nothing yet.
        whole = finite.all() if done.sound is None else finite.all() & done.sound
        if bool(whole):
            for name, values in sums.items():
                total[name] = total[name] + values if name in total else values
            return
        padded_badly = done.sound is not None and not bool(done.sound)
        del done, sums
        if padded_badly:
            self.stacked = False
            self.add(batch, total, exact=exact, again=again)
        elif again:
            raise UnsupportedModel(
                "a unit's gradient is finite alone and not among others: rows are mixed by the model"
            )
        elif not exact:
            # It may be float32 that cannot hold the squares.
            self.add(batch, total, exact=True)
        else:
            # Without these units nothing that is not finite meets a weighted sum.
            self.add(batch.select(finite.nonzero()[:, 0]), total, exact=True, again=True)

    def _counted(self, batch: Batch, *, exact: bool) -> PerExampleGradients | None:
        """The books of these units, or a loop over very few; None when only torch.func will do."""
        if self.known.unseen is not None:
            return None
        try:
            books = self._books(batch, exact=exact)
            if not books.signatures <= self.known.signatures:
                if batch.units <= FEW:
                    return PerExampleLoop(self.model, self.loss, batch, self.groups)
                self._learn(batch)
        except UntracedUse as reason:
            self.known.unseen = str(reason)
            return None
        # Where the few units took other branches than the many, or had no gradient to compare, nothing vouches.
        vouched = self.known.unseen is None and books.signatures <= self.known.signatures
        return books if vouched else None

    def _books(self, batch: Batch, *, exact: bool = False) -> GhostClipping:
        return GhostClipping(
            self.model,
            self.loss,
            batch,
            self.groups,
            stacked=self.stacked,
            exact=exact,
            tied=self.tied,
            trainable=self.trainable,
        )

    def _functional(self, batch: Batch) -> PerExampleGradients:
        if not self.known.functional:
            few = batch.take(0, min(FEW, batch.units))
            loop = PerExampleLoop(self.model, self.loss, few, self.groups)
            if not _agree(self._traced(few), loop, self.model, few):
                raise UnsupportedModel(
                    "the gradients of a few records disagree with the same records taken one at a time: a record's "
                    "loss depends on other rows, on the size of the batch or on torch's global generator. Let every "
                    "row's loss depend on that row, the model and `random` alone"
                )
            self.known.functional = True
        return self._traced(batch, self.compression)

    def _traced(self, batch: Batch, compression: Compressed | None = None) -> VmapGradients:
        try:
            return VmapGradients(self.model, self.loss, batch, self.groups, compression)
        except (UnsupportedModel, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, AttributeError, NotImplementedError, ValueError) as error:
            raise UnsupportedModel(
                f"neither way of counting understands this loss: book-keeping says {self.known.unseen!r}, torch.func "
                f"raises {type(error).__name__}. Use the parameters in layers the engine knows (linear, convolution, "
                "embedding, normalisation, element-wise scales), or write the loss so that torch.func.vmap can "
                "trace it (differentiate with torch.func.grad, vjp or jvp, not with torch.autograd.grad)"
            ) from None

    def _learn(self, batch: Batch) -> None:
        """Take a few units through the books and the loop; agreement makes their shapes known."""
        few = self._few(batch)
        loop = PerExampleLoop(self.model, self.loss, few, self.groups)
        try:
            books = self._books(few)
        except UntracedUse as reason:
            self.known.unseen = str(reason)
            return
        self.known.bytes_per_unit = max(self.known.bytes_per_unit, books.bytes / few.units, 1.0)
        if not _agree(books, loop, self.model, few):
            self.known.unseen = "the books disagree with the loop on a few records"
        elif bool((torch.isfinite(loop.squared) & (loop.squared > 0)).any()):
            self.known.signatures |= books.signatures

    def _few(self, batch: Batch) -> Batch:
        """The first units; for class models the first of each of the first few classes."""
        if not isinstance(self.model, PerClass):
            return batch.take(0, min(FEW, batch.units))
        labels = batch.labels.view(batch.units, -1)[:, 0]
        chosen = [(labels == label).nonzero()[:2, 0] for label in labels.unique()[:FEW]]
        return batch.select(torch.cat(chosen))


_TOLERANCES = {DOUBLE: 1e-6, TENSOR_FLOAT: 5e-2, HALF: 5e-2, BRAIN: 0.25}


def _tolerance(used: Arithmetic) -> float:
    """How far two right answers may be apart: a miscounted gradient is wrong by its own size."""
    return _TOLERANCES.get(used, 5e-3)


def _agree(fast: PerExampleGradients, loop: PerExampleGradients, model: nn.Module, batch: Batch) -> bool:
    """Norms of each unit and the sum of all of them, up to rounding."""
    used = fast.arithmetic
    if used is DOUBLE:
        used = arithmetic((p.dtype for p in model.parameters() if p.requires_grad), batch.images.device)
    tolerance = _tolerance(used)
    norms, expected = fast.squared.sqrt(), loop.squared.sqrt()
    finite = torch.isfinite(norms) & torch.isfinite(expected)
    # A group whose true gradient vanishes holds the rounding of all the others.
    whole = torch.nan_to_num(loop.squared.sum(0, keepdim=True).sqrt(), nan=0.0, posinf=0.0)
    slack = 16.0 * used.roundoff * fast.spread + 256.0 * used.roundoff * whole + 1e-30
    near = (norms - expected).abs() <= tolerance * torch.maximum(norms, expected) + slack
    if not bool((near | ~finite).all()):
        return False
    if not bool(finite.all()):
        return True
    sums = []
    # Unequal weights, so that gradients which were exchanged between units do not add up to the same.
    factor = torch.linspace(0.5, 1.5, norms.shape[1], dtype=torch.float64, device=norms.device).expand_as(norms)
    for one in (fast, loop):
        total: dict[str, Tensor] = {}
        with torch.no_grad():
            one.add_weighted(factor, total)
        sums.append(total)
    empty = torch.zeros((), dtype=torch.float64, device=norms.device)
    names = sums[0].keys() | sums[1].keys()
    distance = torch.stack([(sums[0].get(n, empty) - sums[1].get(n, empty)).square().sum() for n in names]).sum().sqrt()
    room = tolerance * expected.sum() + slack.sum()
    return bool(distance <= 2.0 * room)


def _free(device: torch.device) -> float:
    """Bytes a pass may use: half of what is free."""
    if device.type == "cuda":
        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return 0.5 * (torch.cuda.mem_get_info(device)[0] + reusable)
    return 0.5 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
