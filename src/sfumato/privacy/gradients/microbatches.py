"""Microbatches of one fixed shape, padded with units of weight 0; no unit is ever dropped.

A kernel is chosen by the shape of its operands. With one shape for every microbatch a unit meets the same kernels
whatever the size of the batch, and because sums are exact (``fixed_point``) the packing does not matter either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.gradients.per_class import Part, PerClass


@dataclass(frozen=True, eq=False)
class Microbatch:
    """Units whose gradients are found together.

    ``shared``: unit i of every part and of every stacked model is the same unit, whose images are of several classes;
    its norm is taken over all of them.
    """

    parts: tuple[Part, ...]
    shared: bool = False

    @property
    def units(self) -> int:
        """At most how many units these are, padding included."""
        return sum(part.batch.units for part in self.parts)


def microbatch_size(expected_units: float, *, most: int, multiple: int = 1) -> int:
    """Units in a microbatch, from public numbers: how many a batch is expected to have, and how many fit.

    Three standard deviations above the expected size still fit into the smallest number of microbatches. A size above
    1 is made a ``multiple`` if one fits.
    """
    most = max(1, most)
    usual = max(1.0, expected_units + 3.0 * math.sqrt(expected_units))
    size = min(most, math.ceil(usual / math.ceil(usual / most)))
    if size == 1 or most < multiple:
        return size
    return min(-(-size // multiple), most // multiple) * multiple


def microbatches(model: nn.Module, batch: Batch, size: int, *, stacked: bool) -> Iterator[Microbatch]:
    """The batch in microbatches of ``size`` units for each model."""
    if not isinstance(model, PerClass):
        for start in range(0, batch.units, size):
            yield Microbatch((Part((model,), ("",), _slice(batch, start, size)),))
        return
    # One transfer from the device for all classes.
    labels, counts = batch.labels.cpu().view(batch.weights.shape), batch.weights.cpu() > 0
    first = counts.to(torch.int64).argmax(1, keepdim=True)
    own = labels.gather(1, first)
    several = (counts & (labels != own)).any(1)
    own = torch.where(counts.any(1) & ~several, own[:, 0], -1)
    members = [(own == label).nonzero()[:, 0] for label in range(len(model))]
    yield from _by_class(model, batch, size, members, stacked=stacked)
    # Apart from the others, so that the way in which a unit is computed follows from its own images.
    if bool(several.any()):
        mixed = several.nonzero()[:, 0].to(batch.weights.device)
        yield from _shared(model, batch.select(mixed), size, stacked=stacked)


def _slice(batch: Batch, start: int, size: int) -> Batch:
    return batch.take(start, min(batch.units, start + size)).padded(size)


def _by_class(
    model: PerClass, batch: Batch, size: int, members: list[Tensor], *, stacked: bool
) -> Iterator[Microbatch]:
    """Units of one class each: every class fills its own slots."""
    source = batch.padded(batch.units + 1)  # the last unit is padding
    for start in range(0, max(len(units) for units in members), size):
        slots = [_slots(units[start : start + size], size, batch.units) for units in members]
        if stacked:
            rows = source.select(torch.cat(slots).to(batch.weights.device))
            yield Microbatch((Part(tuple(model.models), _prefixes(model), rows),))
            continue
        for label, slot in enumerate(slots):
            if len(members[label]) > start:
                rows = source.select(slot.to(batch.weights.device))
                yield Microbatch((Part((model[label],), (_prefixes(model)[label],), rows),))


def _slots(units: Tensor, size: int, padding: int) -> Tensor:
    return torch.cat([units, units.new_full((size - len(units),), padding)])


def _shared(model: PerClass, batch: Batch, size: int, *, stacked: bool) -> Iterator[Microbatch]:
    """Units with images of several classes: every class model sees every unit, rows of other classes at weight 0."""
    for start in range(0, batch.units, size):
        whole = _slice(batch, start, size)
        own = [_of_class(whole, label) for label in range(len(model))]
        if stacked:
            yield Microbatch((Part(tuple(model.models), _prefixes(model), _joined(own)),), shared=True)
        else:
            parts = zip(model.models, _prefixes(model), own, strict=True)
            yield Microbatch(tuple(Part((m,), (prefix,), rows) for m, prefix, rows in parts), shared=True)


def _of_class(batch: Batch, label: int) -> Batch:
    weights = torch.where(batch.labels.view(batch.weights.shape) == label, batch.weights, 0.0)
    return replace(batch, labels=torch.full_like(batch.labels, label), weights=weights)


def _joined(batches: list[Batch]) -> Batch:
    random = replace(
        batches[0].random,
        rows=torch.cat([one.random.rows for one in batches]),
        draw=torch.cat([one.random.draw for one in batches]),
    )
    states = [one.state for one in batches if one.state is not None]
    return Batch(
        torch.cat([one.images for one in batches]),
        torch.cat([one.labels for one in batches]),
        random,
        torch.cat([one.weights for one in batches]),
        torch.cat(states) if states else None,
    )


def _prefixes(model: PerClass) -> tuple[str, ...]:
    return tuple(f"models.{label}." for label in range(len(model)))
