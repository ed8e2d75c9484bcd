"""Small deformations of drawn images: turns, stretches, shears, shifts, and smooth displacements.

They are a prior about images, as augmentation is in training, and touch no private datum. Where left and right, or the
size of a thing, mean something, they must be left out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_TURN, _STRETCH, _SHEAR, _SHIFT = 0.12, 0.08, 0.1, 0.04  # radians, relative, relative, half widths; at size 1
_ELASTIC = 0.03  # half widths, at size 1
_NODES = 5  # of the displacement's coarse grid, a side


def deformed(images: Tensor, *, size: float, elastic: float = 0.0, mirror: bool = False) -> Tensor:
    """Every image with a deformation of its own, by torch's global generator.

    Args:
        images: ``[B, C, H, W]``.
        size: Of the affine part; standard deviations are ``size`` times 0.12 rad, 8 %, 0.1 and 0.04 half widths.
        elastic: Of smooth displacements, whose standard deviation is 0.03 half widths at 1.
        mirror: Exchange left and right with probability ½.
    """
    if size <= 0 and elastic <= 0 and not mirror:
        return images
    rows = len(images)
    normal = size * torch.randn(rows, 6, device=images.device, dtype=images.dtype)
    turn, shear = _TURN * normal[:, 0], _SHEAR * normal[:, 3]
    wide, high = (1.0 + _STRETCH * normal[:, 1:3]).unbind(1)
    affine = images.new_zeros(rows, 2, 3)
    affine[:, 0, 0], affine[:, 0, 1] = wide * turn.cos(), shear - turn.sin()
    affine[:, 1, 0], affine[:, 1, 1] = turn.sin(), high * turn.cos()
    affine[:, :, 2] = _SHIFT * normal[:, 4:]
    if mirror:
        affine[:, :, 0] *= 1.0 - 2.0 * torch.randint(2, (rows, 1), device=images.device).to(images)
    grid = F.affine_grid(affine, list(images.shape), align_corners=False)
    if elastic > 0:
        coarse = elastic * _ELASTIC * torch.randn(rows, 2, _NODES, _NODES, device=images.device, dtype=images.dtype)
        smooth = F.interpolate(coarse, size=images.shape[2:], mode="bicubic", align_corners=True)
        grid = grid + smooth.permute(0, 2, 3, 1)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
