"""Compression of each unit's gradient before the clip: a function of that unit's vector alone, so the clip holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Compressed:
    """A clip norm (or one for each group) of gradients that were compressed first.

    ``share`` of a unit's numbers, the largest, are kept and the others become zero. With ``signs`` the kept ones keep
    only their sign, at the length the vector had. Costs speed: every unit's gradient is held whole.
    """

    clip: float | Mapping[str, float]
    share: float = 0.9
    signs: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"compression keeps a share in (0, 1] of a gradient's numbers, not {self.share}")

    def __call__(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameter name → ``[units, *shape]``, compressed over all parameters of a unit together."""
        if not gradients:
            return gradients
        flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)
        kept = max(1, round(self.share * flat.shape[1]))
        least = _kept_from(flat.abs().nan_to_num(nan=0.0), kept)
        # What is not finite stays, so that whoever clips sees it and leaves the unit out.
        small = flat.abs() < least
        if self.signs:
            length = torch.where(small, 0.0, flat).norm(dim=1, keepdim=True)
            flat = flat.sign() * (length / (~small & (flat != 0)).sum(1, keepdim=True).clamp(min=1).sqrt())
        flat = torch.where(small, 0.0, flat)
        pieces = flat.split([gradient[0].numel() for gradient in gradients.values()], dim=1)
        return {name: piece.view_as(gradients[name]) for name, piece in zip(gradients, pieces, strict=True)}


def _kept_from(sizes: Tensor, kept: int) -> Tensor:
    """The smallest of the ``kept`` largest numbers of each row, ``[rows, 1]``.

    Selecting the shorter side takes a fraction of the time of ``kthvalue``, and the number is the same.
    """
    dropped = sizes.shape[1] - kept
    if dropped < kept:
        return sizes.topk(dropped + 1, dim=1, largest=False, sorted=False).values.amax(1, keepdim=True)
    return sizes.topk(kept, dim=1, sorted=False).values.amin(1, keepdim=True)
