"""The definition, one unit at a time: the oracle for the gradient engine."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.batch import Batch, Clip, Compressed, Loss, PerClass, groups_of
from sfumato.privacy.gradients.layers import trainable_parameters
from sfumato.privacy.sums import MARGIN


def unit_gradient(model: nn.Module, loss: Loss, one: Batch) -> dict[str, Tensor]:
    """Parameter name → the gradient of a single unit's loss, in float64."""
    parameters = trainable_parameters(model)
    with torch.enable_grad():
        value = torch.stack([_row_loss(model, loss, one, row) for row in range(len(one.labels))]).sum()
        if not value.requires_grad:
            return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
        gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p, dtype=torch.float64) if g is None else g.detach().double()
        for (name, p), g in zip(parameters.items(), gradients, strict=True)
    }


def _row_loss(model: nn.Module, loss: Loss, one: Batch, row: int) -> Tensor:
    """The weighted loss of one row, which is given alone; without ``torch.func``."""
    weight, here = one.weights.flatten()[row], slice(row, row + 1)
    if not weight > 0:
        return weight.new_zeros(())
    own = model[int(one.labels[row])] if isinstance(model, PerClass) else model
    state = () if one.state is None else (one.state[here],)
    return loss(own, one.images[here], one.labels[here], one.random[here], *state)[0] * weight


def clipped_sum(model: nn.Module, loss: Loss, batch: Batch, clip_norm: Clip) -> dict[str, Tensor]:
    """Parameter name → sum over units of the clipped gradient, in float64; zeros where there are no units."""
    groups = groups_of(model, clip_norm)
    parameters = trainable_parameters(model)
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for unit in range(batch.units):
        vectors = unit_gradient(model, loss, batch.take(unit, unit + 1))
        if isinstance(clip_norm, Compressed):
            vectors = _compressed(clip_norm, vectors, per_class=isinstance(model, PerClass))
        norms = {
            group: torch.sqrt(torch.stack([vectors[name].square().sum() for name in names]).sum())
            for group, (_, names) in groups.items()
        }
        if not all(torch.isfinite(norm) for norm in norms.values()):
            continue
        for group, (bound, names) in groups.items():
            factor = min(1.0, bound * (1.0 - MARGIN) / max(float(norms[group]), 1e-300))
            for name in names:
                total[name] += vectors[name] * factor
    return total


def _compressed(compression: Compressed, vectors: dict[str, Tensor], *, per_class: bool) -> dict[str, Tensor]:
    """One unit's gradient, compressed; with class models each class's part by itself, as the faster way does it."""
    owners: dict[str, dict[str, Tensor]] = {}
    for name, vector in vectors.items():
        owner = name.split(".")[1] if per_class else ""
        owners.setdefault(owner, {})[name] = vector[None]
    return {name: vector[0] for own in owners.values() for name, vector in compression(own).items()}
