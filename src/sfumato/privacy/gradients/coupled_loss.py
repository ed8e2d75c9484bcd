"""Sums of clipped gradients that share a summand: ``Σ_u clip(∇loss_u + shift)``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.engine import clipped_sum
from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.per_class import PerClass


def shifted_sum(
    model: nn.Module, loss: Loss, batch: Batch, clip_norm: float, shift: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Parameter name → the sum in float64. ``shift`` is a gradient of the whole batch, the same for every unit.

    Every unit's gradient is formed whole (torch.func): a norm put together from ``|g|² + 2⟨g, s⟩ + |s|²`` would cancel.
    """
    if isinstance(model, PerClass):
        raise UnsupportedModel(
            "a batch's loss cannot be added to the models of single classes; use one model for all classes"
        )

    def shifted(model: nn.Module, *row: Tensor) -> Tensor:
        # A linear function of the parameters, whose gradient is the shift.
        own = dict(model.named_parameters())
        common = [(own[name] * value.to(own[name].dtype)).sum() for name, value in shift.items()]
        return loss(model, *row) + torch.stack(common).sum()

    return clipped_sum(model, shifted, batch, clip_norm)
