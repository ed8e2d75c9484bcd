"""Microbatches of one fixed shape, padded with units of weight 0; no unit is ever dropped.

A kernel is chosen by the shape of its operands. With one shape for every microbatch a unit meets the same kernels
whatever the size of the batch, and because sums are exact (``fixed_point``) the packing does not matter either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.gradients.per_class import Part, PerClass


@dataclass(frozen=True, eq=False)
class Microbatch:
    """Units whose gradients are found together.

    ``shared``: unit i of every part is the same unit, whose images are of several classes; its norm is taken over all
    of them.
    """

    parts: tuple[Part, ...]
    shared: bool = False

    @property
    def units(self) -> int:
        """How many units these are, padding included."""
        return self.parts[0].batch.units


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


def microbatches(model: nn.Module, batch: Batch, size: int) -> Iterator[Microbatch]:
    """The batch in microbatches of ``size`` units for each model."""
    if not isinstance(model, PerClass):
        for start in range(0, batch.units, size):
            yield Microbatch((Part(model, "", _slice(batch, start, size)),))
        return
    # One transfer from the device for all classes.
    labels, counts = batch.labels.cpu().view(batch.weights.shape), batch.weights.cpu() > 0
    first = counts.to(torch.int64).argmax(1, keepdim=True)
    own = labels.gather(1, first)
    several = (counts & (labels != own)).any(1)
    own = torch.where(counts.any(1) & ~several, own[:, 0], -1)
    for label in range(len(model)):
        rows = batch.select((own == label).nonzero()[:, 0].to(batch.weights.device))
        for start in range(0, rows.units, size):
            yield Microbatch((Part(model[label], model.prefix(label), _slice(rows, start, size)),))
    # Apart from the others, so that the way in which a unit is computed follows from its own images. Every class model
    # sees every such unit, rows of other classes at weight 0.
    mixed = batch.select(several.nonzero()[:, 0].to(batch.weights.device))
    for start in range(0, mixed.units, size):
        whole = _slice(mixed, start, size)
        parts = (Part(model[k], model.prefix(k), _of_class(whole, k)) for k in range(len(model)))
        yield Microbatch(tuple(parts), shared=True)


def _slice(batch: Batch, start: int, size: int) -> Batch:
    return batch.take(start, min(batch.units, start + size)).padded(size)


def _of_class(batch: Batch, label: int) -> Batch:
    weights = torch.where(batch.labels.view(batch.weights.shape) == label, batch.weights, 0.0)
    return replace(batch, labels=torch.full_like(batch.labels, label), weights=weights)
