"""One model for each class, trained as one: a record moves its own class's slice and no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.batch import Batch, Loss


class PerClass(nn.Module):
    """K models of one architecture, ``models.0`` to ``models.K-1``, indexed by label.

    As ``model`` of ``clipped_sum`` the loss is called with ONE inner model and rows of its class only, and clip groups
    are named as in the inner model. A group's clip holds for a unit's gradient over all classes at once, because a
    person may own images of several.

    Parameters keep their usual names in the state dict, ``models.<class>.<name>``. On a CPU the classes go one after
    another; on a GPU they go in one pass over stacked copies of the weights, which needs equal buffers in all models
    (draw a fixed permutation once and give it to every model); with unequal buffers they go one after another there
    as well.

    >>> classes = PerClass([nn.Linear(2, 1) for _ in range(3)])
    >>> len(classes), classes[2].weight.shape
    (3, torch.Size([1, 2]))
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise ValueError("a model for each class needs at least one class")
        shapes = [[(n, p.shape, p.dtype, p.requires_grad) for n, p in model.named_parameters()] for model in models]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError("the models of all classes must have parameters of the same names, shapes and dtypes")
        self.models = nn.ModuleList(models)
        self._compared: tuple[tuple[tuple[int, int], ...] | None, bool] = (None, False)

    def __len__(self) -> int:
        return len(self.models)

    def __getitem__(self, label: int) -> nn.Module:
        return self.models[label]

    def stackable(self) -> bool:
        """Whether one model can stand for all once the weights are exchanged."""
        buffers = [dict(model.named_buffers()) for model in self.models]
        # Comparing waits for the device; a buffer nobody wrote to since last time need not be compared again.
        versions = tuple((id(value), value._version) for own in buffers for value in own.values())
        if versions != self._compared[0]:
            first = buffers[0]
            same = all(
                other.keys() == first.keys() and all(torch.equal(other[name], first[name]) for name in first)
                for other in buffers[1:]
            )
            self._compared = (versions, same)
        return self._compared[1]


@dataclass(frozen=True)
class Part:
    """Rows that meet one model, or equally many rows for each of several stacked ones.

    ``units[i]`` is the place of the part's i-th unit in the whole batch, one past the end for padding; None: the
    part is the batch.
    """

    models: tuple[nn.Module, ...]
    prefixes: tuple[str, ...]
    batch: Batch
    units: Tensor | None


def parts(model: nn.Module, batch: Batch, *, stacked: bool) -> list[Part]:
    """The batch as the models see it."""
    if not isinstance(model, PerClass):
        return [Part((model,), ("",), batch, None)]
    # One trip from the device for all classes.
    labels, counted = batch.labels.cpu().view(batch.weights.shape), batch.weights.cpu() > 0
    places = [_places((labels == label) & counted) for label in range(len(model))]
    present = [label for label, (units, _, _) in enumerate(places) if len(units)]
    if not present:
        return []
    if stacked:
        return [_stack(model, batch, places)]
    device = batch.weights.device
    return [
        Part(
            (model[label],),
            (f"models.{label}.",),
            _gather(batch, places[label][1].to(device), places[label][2].to(device)),
            places[label][0].to(device),
        )
        for label in present
    ]


def _places(member: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of a class, given as ``[units, rows]``: the units that own rows, these rows ``[units, width]``, which count."""
    k = member.shape[1]
    units = member.any(1).nonzero()[:, 0]
    member = member[units]
    width = int(member.sum(1).max()) if len(units) else 0
    order = torch.argsort(~member, dim=1, stable=True)[:, :width]
    counts = member.gather(1, order)
    # A unit with fewer rows of this class is filled up with its first one, at weight 0.
    return units, units[:, None] * k + torch.where(counts, order, order[:, :1]), counts


def _gather(batch: Batch, rows: Tensor, counts: Tensor) -> Batch:
    flat = rows.flatten()
    weights = torch.where(
        counts, batch.weights.flatten()[rows], torch.zeros((), dtype=batch.weights.dtype, device=rows.device)
    )
    state = None if batch.state is None else batch.state[flat]
    return Batch(batch.images[flat], batch.labels[flat], batch.random[flat], weights, state)


def _stack(model: PerClass, batch: Batch, places: list[tuple[Tensor, Tensor, Tensor]]) -> Part:
    depth = max(len(units) for units, _, _ in places)
    width = max(rows.shape[1] for _, rows, _ in places)
    all_units = torch.full((len(places), depth), batch.units)
    all_rows = torch.zeros((len(places), depth, width), dtype=torch.int64)
    all_counts = torch.zeros((len(places), depth, width), dtype=torch.bool)
    for label, (units, rows, counts) in enumerate(places):
        if not len(units):
            continue
        n, w = rows.shape
        all_rows[label] = rows[0, 0]
        all_rows[label, :n] = rows[:, :1]
        all_units[label, :n], all_rows[label, :n, :w], all_counts[label, :n, :w] = units, rows, counts
    device = batch.weights.device
    rows, counts = all_rows.flatten(0, 1).to(device), all_counts.flatten(0, 1).to(device)
    prefixes = tuple(f"models.{label}." for label in range(len(places)))
    return Part(tuple(model.models), prefixes, _gather(batch, rows, counts), all_units.flatten().to(device))


def losses(model: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    """One number per row, each row before the model of its class."""
    if not isinstance(model, PerClass):
        return batch.losses(loss, model)
    result = None
    for label in range(len(model)):
        rows = (batch.labels == label).nonzero()[:, 0]
        if not len(rows):
            continue
        own = replace(
            batch,
            images=batch.images[rows],
            labels=batch.labels[rows],
            random=batch.random[rows],
            state=None if batch.state is None else batch.state[rows],
        )
        values = own.losses(loss, model[label])
        result = values.new_zeros(len(batch.labels)) if result is None else result
        result = result.index_add(0, rows, values)
    return batch.weights.new_zeros(len(batch.labels)) if result is None else result
