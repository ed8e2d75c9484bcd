"""Samplers of a score network: annealed Hamiltonian dynamics, and Heun's method for the probability flow.

Both start from noise of the first level and follow the score down the noise levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Field = Callable[[Tensor, Tensor], Tensor]
"""``field(images, sigma)``: scores, or denoised images, of noisy images with one noise level for each row."""

Momentum = Literal["gaussian", "rayleigh", "uniform"]


def karras_sigmas(count: int, *, sigma_max: float, sigma_min: float, rho: float = 7.0) -> list[float]:
    """Noise levels from ``sigma_max`` down to ``sigma_min``, evenly spaced in their power 1/ρ (Karras et al., 2022).

    ρ = 7 spends more levels where the image is decided. ρ = −2 is DPPM's step decay λ·(M/m)², exactly so for
    ``sigma_max`` = M²·``sigma_min``.

    >>> [round(sigma, 2) for sigma in karras_sigmas(3, sigma_max=10.0, sigma_min=0.1, rho=7.0)]
    [10.0, 1.45, 0.1]
    """
    if count == 1:
        return [sigma_max]
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return [float((high + m / (count - 1) * (low - high)) ** rho) for m in range(count)]


def momenta(distribution: Momentum, like: Tensor) -> Tensor:
    """Random momenta of mean 0 and variance 1 in the shape of ``like``. A Rayleigh draw gets a random sign."""
    if distribution == "gaussian":
        return torch.randn_like(like)
    if distribution == "uniform":
        return (2.0 * torch.rand_like(like) - 1.0) * math.sqrt(3.0)
    length = torch.hypot(torch.randn_like(like), torch.randn_like(like)) / math.sqrt(2.0)
    return length * (2.0 * torch.randint_like(like, 2) - 1.0)


def hamiltonian(
    score: Field,
    images: Tensor,
    sigmas: list[float],
    *,
    leapfrog_steps: int = 3,
    step_size: float = 0.5,
    momentum_distribution: Momentum = "gaussian",
    metropolis: bool = True,
) -> Tensor:
    """Annealed Hamiltonian Monte Carlo: at every noise level draw momenta and take leapfrog steps.

    With ``step_size · leapfrog_steps`` ≈ π/2 the momenta replace the noise of the previous level. A score network has
    no energy; the Metropolis rule needs only an energy difference, the line integral of the score along the path,
    which the trapezoidal rule gives. The kinetic energy is p²/2 for every distribution of p, as in the paper, so the
    rule is exact for Gaussian momenta only.

    Args:
        score: The score at a noise level.
        images: Noisy images of the first level.
        sigmas: The noise levels, from large to small.
        leapfrog_steps: Leapfrog steps at every level.
        step_size: The step size in units of the noise level.
        momentum_distribution: The distribution of the momenta.
        metropolis: Accept or reject every trajectory by the Metropolis rule.
    """
    for level in sigmas:
        sigma, size = images.new_full((len(images),), level), step_size * level
        position, momentum = images, momenta(momentum_distribution, images)
        kinetic = momentum.square().flatten(1).sum(1) / 2
        force, work = score(position, sigma), images.new_zeros(len(images))
        for _ in range(leapfrog_steps):
            half = momentum + size / 2 * force
            position = position + size * half
            next_force = score(position, sigma)
            momentum = half + size / 2 * next_force
            work = work + ((force + next_force) / 2 * (size * half)).flatten(1).sum(1)
            force = next_force
        if metropolis:
            gain = work + kinetic - momentum.square().flatten(1).sum(1) / 2
            accepted = torch.rand_like(gain).log() < gain
            position = torch.where(accepted.view(-1, 1, 1, 1), position, images)
        images = position
    return images


def heun(denoise: Field, images: Tensor, sigmas: list[float]) -> Tensor:
    """Heun's method for the probability flow (Karras et al., 2022, Algorithm 1), deterministic after the start."""
    for sigma, next_sigma in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        slope = (images - denoise(images, images.new_full((len(images),), sigma))) / sigma
        proposal = images + (next_sigma - sigma) * slope
        if next_sigma > 0.0:
            denoised = denoise(proposal, images.new_full((len(images),), next_sigma))
            second = (proposal - denoised) / next_sigma
            proposal = images + (next_sigma - sigma) * (slope + second) / 2
        images = proposal
    return images
