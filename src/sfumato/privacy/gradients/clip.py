"""From every parameter's contribution to the exact sum of clipped vectors of a microbatch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sfumato.privacy.gradients.bundles import Bundle, bundled
from sfumato.privacy.gradients.contribution import Contribution
from sfumato.privacy.gradients.fixed_point import clip_factors, grid_spacing
from sfumato.privacy.gradients.groups import Groups
from sfumato.privacy.gradients.microbatches import Microbatch

Found = Sequence[dict[str, Contribution]]
"""For each part of a microbatch: parameter name inside the model → contribution."""


def clip_and_sum(micro: Microbatch, found: Found, groups: Groups) -> dict[str, Tensor]:
    """Parameter name → whole numbers of grid steps, int64 ``[numel]``."""
    device = micro.parts[0].batch.images.device
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        return _clip_and_sum(micro, found, groups)


def _clip_and_sum(micro: Microbatch, found: Found, groups: Groups) -> dict[str, Tensor]:
    owner = {name: group for group, (_, names) in groups.items() for name in names}
    bundles = [
        list(bundled(contributions, {name: owner[part.prefixes[0] + name] for name in contributions}))
        for part, contributions in zip(micro.parts, found, strict=True)
    ]
    factors = _factors(micro, [one for own in bundles for one in own], groups)
    sums: dict[str, Tensor] = {}
    for part, own in zip(micro.parts, bundles, strict=True):
        for group, bundle in own:
            factor = factors[group]
            if micro.shared:
                factor = factor.repeat(bundle.stack)
            for name, values in bundle.sums(factor, grid_spacing(groups[group][0])):
                sums.update(zip((prefix + name for prefix in part.prefixes), values, strict=True))
    return sums


def _factors(micro: Microbatch, bundles: list[tuple[str, Bundle]], groups: Groups) -> dict[str, Tensor]:
    """Group → what each unit's vector is multiplied with; 0 in every group if a norm of the unit is not finite."""
    measured: dict[str, list[tuple[Tensor, Tensor, float]]] = {}
    steps: dict[str, float] = {}
    for group, bundle in bundles:
        norm, spread = bundle.norms()
        if micro.shared:
            norm, spread = (torch.linalg.vector_norm(v.view(bundle.stack, -1), dim=0) for v in (norm, spread))
        measured.setdefault(group, []).append((norm, spread, bundle.contribution.relative))
        # A shared unit has a vector in each of the stacked models.
        steps[group] = steps.get(group, 0.0) + bundle.absolute**2 * (bundle.stack if micro.shared else 1)
    factors = {}
    for group, values in measured.items():
        norms, spreads = torch.stack([n for n, _, _ in values]), torch.stack([s for _, s, _ in values])
        # Numbers of Python times tensors: a tensor of them would have to be copied to a GPU, which waits for it.
        rounding = torch.stack([spread * relative for _, spread, relative in values])
        factors[group] = clip_factors(
            torch.linalg.vector_norm(norms, dim=0),
            torch.linalg.vector_norm(spreads, dim=0),
            rounding=torch.linalg.vector_norm(rounding, dim=0),
            clip_norm=groups[group][0],
            absolute=math.sqrt(steps[group]),
        )
    if len(factors) < 2:
        return factors
    finite = (torch.stack(list(factors.values())) > 0).all(0)
    return {group: torch.where(finite, factor, 0.0) for group, factor in factors.items()}
