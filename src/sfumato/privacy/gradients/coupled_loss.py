"""Sums of clipped gradients that share a summand: ``Σ_u clip(∇loss_u + shift)``."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.engine import clipped_sum, pass_over
from sfumato.privacy.gradients.errors import UnsupportedModel
from sfumato.privacy.gradients.ghost import GhostClipping
from sfumato.privacy.gradients.per_class import PerClass
from sfumato.privacy.gradients.rounding import DOUBLE, SINGLE

_ROOM = 4096.0  # roundings of one sum, in units of the last place, as the probe allows them


def shifted_sum(model: nn.Module, loss: Loss, batch: Batch, clip: float, shift: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameter name → the sum in float64. ``shift`` is a gradient of the whole batch, the same for every unit."""
    if isinstance(model, PerClass):
        raise UnsupportedModel(
            "a batch's loss cannot be added to the models of single classes; use one model for all classes"
        )
    total = _counted(model, loss, batch, clip, shift)
    if total is not None:
        return total

    def shifted(model: nn.Module, *row: Tensor) -> Tensor:
        # A linear function of the parameters, whose gradient is the shift.
        own = dict(model.named_parameters())
        common = [(own[name] * value.to(own[name].dtype)).sum() for name, value in shift.items()]
        return loss(model, *row) + torch.stack(common).sum()

    return clipped_sum(model, shifted, batch, clip)


def _counted(
    model: nn.Module, loss: Loss, batch: Batch, clip: float, shift: dict[str, Tensor]
) -> dict[str, Tensor] | None:
    """‖g + s‖² = ‖g‖² + 2⟨g, s⟩ + ‖s‖² from the books and one forward derivative; None where either does not serve.

    The three are rounded apart from each other, so the norm is taken larger by all that rounding can have taken off.
    """
    books = pass_over(model, loss, batch, clip)
    # In TF32 or bfloat16 the operands of the weighted sum are rounded by more than the slack below.
    if not isinstance(books, GhostClipping) or books.arithmetic not in (DOUBLE, SINGLE):
        return None
    products = _products(model, loss, batch, shift)
    if products is None:
        return None
    own, size = books.squared[0].sqrt(), torch.stack([v.square().sum() for v in shift.values()]).sum().sqrt()
    roundoff = max(torch.finfo(p.dtype).eps for p in model.parameters())
    slack = _ROOM * roundoff * (books.spread[0] + own + size).square()
    norms = ((own.square() + 2.0 * products + size.square()).clamp(min=0.0) + slack).sqrt()
    if not bool(torch.isfinite(norms).all()):
        return None
    factor = (clip / norms.clamp(min=1e-300)).clamp(max=1.0)
    sums: dict[str, Tensor] = {}
    books.add_weighted(factor[None], sums)
    return {
        name: factor.sum() * value + (sums[name].view_as(value) if name in sums else 0.0)
        for name, value in shift.items()
    }


def _products(model: nn.Module, loss: Loss, batch: Batch, shift: dict[str, Tensor]) -> Tensor | None:
    """⟨g_u, s⟩ for every unit, in float64."""
    values = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            rows = batch.losses(loss, self.model)
            weights = batch.weights.flatten()
            return torch.where(weights > 0, rows * weights.to(rows.dtype), 0.0).view(batch.units, -1).sum(1)

    def units(values: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(Task(), {"model." + name: value for name, value in values.items()}, ())
        return found

    tangents = {name: shift[name].to(value.dtype) for name, value in values.items()}
    try:
        with warnings.catch_warnings():
            # torch warns of its own way of finding forward derivatives.
            warnings.simplefilter("ignore", DeprecationWarning)
            found = jvp(units, (values,), (tangents,))
    except (RuntimeError, NotImplementedError):
        return None
    return found[1].detach().double()
