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


@dataclass(frozen=True, eq=False)
class Part:
    """Rows that one model takes, or equally many rows for each of several stacked models."""

    models: tuple[nn.Module, ...]
    prefixes: tuple[str, ...]
    batch: Batch


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
