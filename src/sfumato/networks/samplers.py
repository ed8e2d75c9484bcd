"""From noise to images with a score network: annealed Hamiltonian dynamics, and a deterministic solver.

Both start from noise of the first level, follow the score down the levels and end with the network's estimate of the
clean image at the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Field = Callable[[Tensor, Tensor], Tensor]
"""``field(images, level)``: scores, or clean images, of noisy images at one noise level for each row."""

Kinetic = Literal["gaussian", "rayleigh", "uniform"]


def noise_levels(count: int, *, largest: float, smallest: float, bend: float = 7.0) -> list[float]:
    """``count`` levels from ``largest`` down, of which the power 1/bend is evenly spaced.

    A bend of -2 is the paper's step decay λ·(M/m)², exactly so for largest = M²·smallest; it hurries through large
    levels. 7 (Karras et al., 2022) stays longer where the noise still decides what will be drawn.
    """
    if count == 1:
        return [largest]
    high, low = largest ** (1 / bend), smallest ** (1 / bend)
    return [(high + m / (count - 1) * (low - high)) ** bend for m in range(count)]


def momentum(kind: Kinetic, like: Tensor) -> Tensor:
    """Fresh momenta of mean 0 and mean square 1. A Rayleigh draw is a length, so it gets a random sign."""
    if kind == "gaussian":
        return torch.randn_like(like)
    if kind == "uniform":
        return (2.0 * torch.rand_like(like) - 1.0) * math.sqrt(3.0)
    length = torch.hypot(torch.randn_like(like), torch.randn_like(like)) / math.sqrt(2.0)
    return length * (2.0 * torch.randint_like(like, 2) - 1.0)


def hamiltonian(
    score: Field,
    images: Tensor,
    levels: list[float],
    *,
    leapfrog: int = 3,
    step: float = 0.5,
    kinetic: Kinetic = "gaussian",
    metropolis: bool = True,
) -> Tensor:
    """At each level draw momenta, take ``leapfrog`` steps of ``step`` noise levels, then accept or go back.

    With ``step · leapfrog`` ≈ π/2 a Gaussian forgets its old noise in one go. A score network has no energy; what is
    needed of it is a difference, the line integral of the score along the path, taken by the trapezoidal rule.
    Kinetic energy is p²/2 for every law of p, as in the paper, so the rule is exact for Gaussian momenta only.
    """
    for level in levels:
        at, size = images.new_full((len(images),), level), step * level
        place, move = images, momentum(kinetic, images)
        before = move.square().flatten(1).sum(1) / 2
        force, work = score(place, at), images.new_zeros(len(images))
        for _ in range(leapfrog):
            half = move + size / 2 * force
            place = place + size * half
            ahead = score(place, at)
            move = half + size / 2 * ahead
            work = work + ((force + ahead) / 2 * (size * half)).flatten(1).sum(1)
            force = ahead
        if metropolis:
            gain = work + before - move.square().flatten(1).sum(1) / 2
            accepted = torch.rand_like(gain).log() < gain
            place = torch.where(accepted.view(-1, 1, 1, 1), place, images)
        images = place
    return images


def heun(denoise: Field, images: Tensor, levels: list[float]) -> Tensor:
    """The probability flow by Heun's rule, two evaluations a level; no draws after the first."""
    for level, below in zip(levels, [*levels[1:], 0.0], strict=True):
        slope = (images - denoise(images, images.new_full((len(images),), level))) / level
        ahead = images + (below - level) * slope
        if below > 0.0:
            second = (ahead - denoise(ahead, images.new_full((len(images),), below))) / below
            ahead = images + (below - level) * (slope + second) / 2
        images = ahead
    return images
