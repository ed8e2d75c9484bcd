"""The plain version of the contract: one unit at a time, in the open. The oracle for every faster one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.groups import Clip, groups_of
from sfumato.privacy.gradients.per_class import PerClass, losses
from sfumato.privacy.gradients.per_example import Groups, PerExampleGradients, add_to, group_index
from sfumato.privacy.gradients.rounding import DOUBLE
from sfumato.privacy.gradients.sparsify import Compressed

MARGIN = 1e-6
"""float32 rounds the scaled vector; the clip aims this much lower so that what is summed stays inside the ball."""


def unit_gradient(model: nn.Module, loss: Loss, one: Batch) -> dict[str, Tensor]:
    """Parameter name → the gradient of a single unit's loss, in float64."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    weights = one.weights.flatten()
    value = torch.where(weights > 0, losses(model, loss, one) * weights, 0.0).sum()
    if not value.requires_grad:
        return {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    gradients = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p, dtype=torch.float64) if g is None else g.detach().double()
        for (name, p), g in zip(parameters.items(), gradients, strict=True)
    }


def clipped_sum(model: nn.Module, loss: Loss, batch: Batch, clip: Clip) -> dict[str, Tensor]:
    """Parameter name → sum over units of the clipped gradient, in float64. No units, no movement: zeros."""
    groups = groups_of(model, clip)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for unit in range(batch.units):
        vectors = unit_gradient(model, loss, batch.take(unit, unit + 1))
        if isinstance(clip, Compressed):
            vectors = _compressed(clip, vectors, per_class=isinstance(model, PerClass))
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
    """One unit's gradient; of class models each class's part by itself, as the faster way does it."""
    owners: dict[str, dict[str, Tensor]] = {}
    for name, vector in vectors.items():
        owner = name.split(".")[1] if per_class else ""
        owners.setdefault(owner, {})[name] = vector[None]
    return {name: vector[0] for own in owners.values() for name, vector in compression(own).items()}


class PerExampleLoop(PerExampleGradients):
    """One unit after another. For very few units, and to check the others."""

    def __init__(self, model: nn.Module, loss: Loss, batch: Batch, groups: Groups) -> None:
        self._group = group_index(groups)
        with torch.enable_grad():
            self._gradients = [unit_gradient(model, loss, batch.take(i, i + 1)) for i in range(batch.units)]
        norms = [
            [torch.stack([g[name].square().sum() for name in names]).sum() for _, names in groups.values()]
            for g in self._gradients
        ]
        self.squared = torch.stack([torch.stack(row) for row in norms]).t()
        self.spread = self.squared.sqrt()
        self.arithmetic = DOUBLE

    def add_weighted(self, factor: Tensor, total: dict[str, Tensor]) -> None:
        for unit, gradient in enumerate(self._gradients):
            for name, value in gradient.items():
                add_to(total, name, (factor[self._group[name], unit] * value).flatten())
