"""The loss of every row, and checks that every back-end needs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.isolation import each_row


class _Task(nn.Module):
    """The loss of every row as a module, so that the parameters inside can be exchanged by name."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        return each_row(self.loss, batch, self.model)


def losses(model: nn.Module, loss: Loss, batch: Batch, values: Mapping[str, Tensor]) -> Tensor:
    """The loss of every row, each by itself, with these tensors in place of the model's own."""
    own = {"model." + name: value for name, value in values.items()}
    found: Tensor = functional_call(_Task(model, loss), own, (batch,))
    return found


def weighted_loss(rows: Tensor, batch: Batch) -> Tensor:
    """The sum of the rows' losses, each with its weight; rows of weight 0 have no part in it."""
    weights = batch.weights.flatten()
    if rows.shape != weights.shape:
        raise UnsupportedModel(
            f"the loss must return one number for each row, a tensor of one dimension, not {rows.dim()} dimensions "
            "or another length: reduce over pixels, never over the batch"
        )
    return torch.where(weights > 0, rows * weights.to(rows.dtype), 0.0).sum()


def code_of(function: object) -> object:
    """What tells functions apart that are made anew at every step: their code, or the class of a callable object."""
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or type(function)


def trainable_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Parameter name → parameter, of those that are trained."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def refuse_outside_use(reached: list[str]) -> None:
    """Refuse a loss that uses parameters other than through the model it is given."""
    if reached:
        raise UnsupportedModel(
            f"the loss reaches parameter {reached[0]!r} by another way than the model it is given (a tensor kept from "
            "before, or a list of weights inside a recurrent layer), so its gradient for one record cannot be told "
            "apart; use the parameters as attributes of the model"
        )
