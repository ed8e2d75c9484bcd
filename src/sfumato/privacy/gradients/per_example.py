"""What every way of finding per-example gradients offers, and the pieces they share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.rounding import Arithmetic

Groups = dict[str, tuple[float, list[str]]]


class PerExampleGradients(ABC):
    """``squared`` and ``spread`` are float64 ``[groups, units]``: squared norms, and what rounding is measured by."""

    squared: Tensor
    spread: Tensor
    arithmetic: Arithmetic
    sound: Tensor | None = None
    """Whether what was padded came out finite; None where nothing was."""

    @abstractmethod
    def add_weighted(self, factor: Tensor, total: dict[str, Tensor]) -> None:
        """Add ``Σ_u factor[group, u] · gradient_u`` to the totals; a name that is not there yet is entered."""


class Task(nn.Module):
    """The loss as a module, so that the parameters inside can be exchanged by name."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Batch) -> Tensor:
        return batch.losses(self.loss, self.model)


def weighted_loss(rows: Tensor, batch: Batch) -> Tensor:
    weights = batch.weights.flatten()
    if rows.shape != weights.shape:
        raise UnsupportedModel(
            f"the loss must return one number for each row, a tensor of one dimension, not {rows.dim()} dimensions "
            "or another length: reduce over pixels, never over the batch"
        )
    return torch.where(weights > 0, rows * weights.to(rows.dtype), 0.0).sum()


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def refuse_outside_use(reached: list[str]) -> None:
    if reached:
        raise UnsupportedModel(
            f"the loss reaches parameter {reached[0]!r} by another way than the model it is given (a tensor kept from "
            "before, or a list of weights inside a recurrent layer), so its gradient for one record cannot be told "
            "apart; use the parameters as attributes of the model"
        )


def group_index(groups: Groups) -> dict[str, int]:
    return {name: i for i, (_, names) in enumerate(groups.values()) for name in names}


def add_to(total: dict[str, Tensor], name: str, values: Tensor) -> None:
    """Flat vectors in float64."""
    if name in total:
        total[name] += values
    else:
        total[name] = values
