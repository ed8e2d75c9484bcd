"""From every parameter's contribution to the exact sum of clipped vectors of a microbatch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sfumato.privacy.gradients.contribution import Contribution, PerExample
from sfumato.privacy.gradients.fixed_point import clip_factors, grid_spacing
from sfumato.privacy.gradients.groups import Groups
from sfumato.privacy.gradients.microbatches import Microbatch

Found = Sequence[Mapping[str, Contribution]]
"""For each part of a microbatch: parameter name inside the model → contribution."""

_SMALL = 1 << 12
"""Numbers of a gradient up to which it is faster to copy it beside others than to start operations for it alone."""


def clip_and_sum(micro: Microbatch, found: Found, groups: Groups) -> dict[str, Tensor]:
    """Parameter name → whole numbers of grid steps, int64 ``[numel]``."""
    device = micro.parts[0].batch.images.device
    owner = {name: group for group, (_, names) in groups.items() for name in names}
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        named = {part.prefix + n: c for part, own in zip(micro.parts, found, strict=True) for n, c in own.items()}
        joined = _joined(named, owner)
        factors = _factors(joined, owner, groups)
        sums: dict[str, Tensor] = {}
        for names, contribution in joined:
            group = owner[names[0]]
            total = contribution.sums(factors[group], grid_spacing(groups[group][0]))
            widths = [len(total)] if len(names) == 1 else [_width(named[name]) for name in names]
            sums.update(zip(names, total.split(widths), strict=True))
    return sums


def _joined(named: Mapping[str, Contribution], owner: Mapping[str, str]) -> list[tuple[list[str], Contribution]]:
    """Small gradients of a group side by side as one contribution, the others as they are; public shapes decide."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, one in named.items():
        small = isinstance(one, PerExample) and one.gradient.shape[1] <= _SMALL
        key = (owner[name], one.gradient.dtype) if isinstance(one, PerExample) and small else (name,)
        alike.setdefault(key, []).append(name)
    found = []
    for names in alike.values():
        parts = [named[name] for name in names]
        whole = [part.gradient for part in parts if isinstance(part, PerExample)]
        found.append((names, parts[0] if len(parts) == 1 else PerExample(torch.cat(whole, 1))))
    return found


def _width(contribution: Contribution) -> int:
    assert isinstance(contribution, PerExample)
    return contribution.gradient.shape[1]


def _factors(
    joined: Sequence[tuple[list[str], Contribution]], owner: Mapping[str, str], groups: Groups
) -> dict[str, Tensor]:
    """Group → what each unit's vector is multiplied with; 0 in every group if a norm of the unit is not finite."""
    measured: dict[str, list[tuple[Tensor, Tensor, Contribution]]] = {}
    for names, contribution in joined:
        measured.setdefault(owner[names[0]], []).append((*contribution.norms(), contribution))
    factors = {}
    for group, values in measured.items():
        norms, spreads = torch.stack([n for n, _, _ in values]), torch.stack([s for _, s, _ in values])
        # Numbers of Python times tensors: a tensor of them would have to be copied to a GPU, which waits for it.
        rounding = torch.stack([spread * one.relative for _, spread, one in values])
        factors[group] = clip_factors(
            torch.linalg.vector_norm(norms, dim=0),
            torch.linalg.vector_norm(spreads, dim=0),
            rounding=torch.linalg.vector_norm(rounding, dim=0),
            clip_norm=groups[group][0],
            absolute=math.sqrt(sum(one.absolute**2 for _, _, one in values)),
        )
    if len(factors) < 2:
        return factors
    finite = (torch.stack(list(factors.values())) > 0).all(0)
    return {group: torch.where(finite, factor, 0.0) for group, factor in factors.items()}
