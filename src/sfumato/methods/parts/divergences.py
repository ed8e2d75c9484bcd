"""Divergences between a batch and a distribution, in a form that DP can train: functions of a mean embedding.

A loss that looks at a whole batch cannot be clipped record by record. But if it is a function D of the batch's mean
embedding m = mean ψ(x_i), its gradient at a noisy m̃ is a sum over records: ⟨∇D(m̃), ψ(x_i)⟩ is a loss of one record.
So ask for m̃ first (``noisy_sum``, ‖ψ‖ ≤ 1), then for an ordinary clipped gradient in the same step. Any method may.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.networks.dense import Posterior
from sfumato.networks.priors import Prior, log_normal

CAUCHY_SCALES = (0.2, 0.4, 1.0, 2.0, 4.0, 10.0)


def slope(distance: Callable[[Tensor], Tensor], mean: Tensor) -> Tensor:
    """∇D(m̃): what one record's embedding is multiplied by. ``distance`` is any differentiable D of a mean embedding.

    >>> slope(lambda mean: mean.square().sum(), torch.tensor([1.0, -2.0]))
    tensor([ 2., -4.])
    """
    with torch.enable_grad():
        point = mean.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(distance(point), point)
    return gradient


class Divergence(ABC):
    """How far a batch of posteriors is from a prior, by its mean embedding."""

    @abstractmethod
    def embed(self, posterior: Posterior, noise: Tensor) -> Tensor:
        """``[rows, features]`` of norm at most 1, row by row; ``noise`` is standard normal, ``[rows, code]``."""

    @abstractmethod
    def distance(self, mean: Tensor) -> Tensor:
        """D(m), one number."""

    def between(self, embedded: Tensor) -> Tensor:
        """D for a whole batch or group, from its rows' embeddings."""
        return self.distance(embedded.mean(0))


class CauchyMMD(Divergence):
    """Squared maximum mean discrepancy with k(x, y) = mean over dimensions and scales s of s / (s + (x_d − y_d)²).

    The Cauchy kernel's waves are Laplace distributed with scale 1/√s; ``waves`` quantiles of each scale stand for it,
    so that the features are constants and no draw needs to be kept.
    """

    def __init__(self, prior: Prior, *, waves: int = 2) -> None:
        shares = (torch.arange(waves, dtype=torch.float64) + 0.5) / waves
        each = [-torch.log1p(-shares) / math.sqrt(scale) for scale in CAUCHY_SCALES]
        self.frequencies = torch.cat(each)
        cosine, sine = prior.wave(self.frequencies)
        self._size = math.sqrt(prior.code * len(self.frequencies))
        self._target = torch.cat([cosine, sine]).expand(prior.code, -1).flatten() / self._size

    def embed(self, posterior: Posterior, noise: Tensor) -> Tensor:
        angles = posterior.draw(noise)[:, :, None] * self.frequencies.to(noise)
        return torch.cat([angles.cos(), angles.sin()], dim=2).flatten(1) / self._size

    def distance(self, mean: Tensor) -> Tensor:
        return (mean - self._target.to(mean)).square().sum()

    def between(self, embedded: Tensor) -> Tensor:
        """The unbiased estimate: every embedding has norm 1, so the pairs i = i are known and taken out."""
        count, mean = len(embedded), embedded.mean(0)
        target = self._target.to(mean)
        own = (count * mean.square().sum() - 1) / max(1, count - 1) if count > 1 else mean.square().sum()
        return own - 2 * (mean @ target) + target.square().sum()


class ForwardKL(Divergence):
    """KL(p ‖ q) up to a constant, q the average posterior: −mean_j log q(z_j) at fixed draws z_j of the prior.

    Both sides are widened by a normal of ``bandwidth``, for a posterior that is far from z_j has no slope there.
    Densities are divided by a constant that brings ‖ψ‖ near 1, and clipped to it; the constant does not move the
    logarithm's slope. Below ``floor`` the logarithm goes on as a straight line: noise may make a density negative.
    """

    def __init__(self, prior: Prior, *, points: int = 64, bandwidth: float = 0.2, floor: float = 1e-3) -> None:
        self.points = prior.draw(points)
        self.points = self.points + bandwidth * torch.randn_like(self.points)
        self.bandwidth, self.floor = bandwidth, floor
        peak = (math.sqrt(2 * math.pi) * max(bandwidth, 1e-3)) ** -prior.code
        self._scale = 1.0 / (peak * math.sqrt(points / 2**prior.code))

    def embed(self, posterior: Posterior, noise: Tensor) -> Tensor:
        width = (posterior.deviation.square() + self.bandwidth**2).sqrt()
        points = self.points.to(posterior.mean)
        values = log_normal(points, posterior.mean[:, None], width[:, None]).sum(-1).exp() * self._scale
        return values / values.norm(dim=1, keepdim=True).clamp(min=1.0)

    def distance(self, mean: Tensor) -> Tensor:
        below = math.log(self.floor) + (mean - self.floor) / self.floor
        return -torch.where(mean > self.floor, mean.clamp(min=self.floor).log(), below).mean()
