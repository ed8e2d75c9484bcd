"""Mean embeddings, and divergences between a batch and a distribution as functions of one, which DP-SGD can train."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from sfumato.networks.vae import Posterior, Prior, log_normal


class FourierFeatures:
    """Random Fourier features of a Gaussian kernel. Every embedding has norm 1, so a sum of them needs no clipping."""

    def __init__(self, inputs: int, *, features: int, length_scale: float, device: torch.device) -> None:
        """Draw ``features // 2`` frequencies with torch's global generator, which is public."""
        self.count = features // 2
        self.frequencies = torch.randn(inputs, self.count, device=device) / length_scale

    def __call__(self, images: Tensor) -> Tensor:
        """Embeddings ``[B, features]`` of the images."""
        angles = images.flatten(1) @ self.frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=1) / self.count**0.5


def unbiased_distance(embedded: Tensor, target: Tensor) -> Tensor:
    """Unbiased estimate of Σ over classes of ‖E φ − target‖², up to a constant.

    Args:
        embedded: Embeddings of norm 1, ``[classes, images, features]``.
        target: Mean embeddings, ``[classes, features]``.
    """
    classes, images = embedded.shape[:2]
    mean = embedded.mean(1)
    # The pairs i = i of ‖mean‖² are 1 each and are taken out; they would reward images for being alike.
    own = (images * mean.square().sum() - classes) / (images - 1)
    return own - 2 * (mean * target).sum()


CAUCHY_SCALES = (0.2, 0.4, 1.0, 2.0, 4.0, 10.0)


def gradient_of(distance: Callable[[Tensor], Tensor], mean: Tensor) -> Tensor:
    """∇D(m̃), the weights of a record's embedding in its loss; ``distance`` is any differentiable D.

    >>> gradient_of(lambda mean: mean.square().sum(), torch.tensor([1.0, -2.0]))
    tensor([ 2., -4.])
    """
    with torch.enable_grad():
        point = mean.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(distance(point), point)
    return gradient


class Divergence(ABC):
    """A divergence of a batch of posteriors from a prior, by its mean embedding."""

    @abstractmethod
    def embed(self, posterior: Posterior, noise: Tensor) -> Tensor:
        """Embeddings ``[B, features]`` of norm at most 1; ``noise`` is standard normal, ``[B, latent_dim]``."""

    @abstractmethod
    def distance(self, mean: Tensor) -> Tensor:
        """D(m), a scalar."""

    def between(self, embedded: Tensor) -> Tensor:
        """D of a batch or group from the embeddings of its rows."""
        return self.distance(embedded.mean(0))


class CauchyMMD(Divergence):
    """Squared maximum mean discrepancy with k(x, y) = mean over dimensions and scales s of s / (s + (x_d − y_d)²).

    The spectral measure of the Cauchy kernel is a Laplace distribution of scale 1/√s. ``frequencies`` quantiles of it
    for each scale give features that are constants, so that no random draw has to be kept.
    """

    def __init__(self, prior: Prior, *, frequencies: int = 2) -> None:
        """Compute the features' frequencies and the prior's embedding."""
        quantiles = (torch.arange(frequencies, dtype=torch.float64) + 0.5) / frequencies
        each = [-torch.log1p(-quantiles) / math.sqrt(scale) for scale in CAUCHY_SCALES]
        self.frequencies = torch.cat(each)
        cosine, sine = prior.characteristic_function(self.frequencies)
        self._size = math.sqrt(prior.latent_dim * len(self.frequencies))
        self._target = torch.cat([cosine, sine]).expand(prior.latent_dim, -1).flatten() / self._size

    def embed(self, posterior: Posterior, noise: Tensor) -> Tensor:
        angles = posterior.draw(noise)[:, :, None] * self.frequencies.to(noise)
        return torch.cat([angles.cos(), angles.sin()], dim=2).flatten(1) / self._size

    def distance(self, mean: Tensor) -> Tensor:
        return (mean - self._target.to(mean)).square().sum()

    def between(self, embedded: Tensor) -> Tensor:
        """The unbiased estimate: every embedding has norm 1, so the pairs i = i are known and are taken out."""
        count, mean = len(embedded), embedded.mean(0)
        target = self._target.to(mean)
        own = (count * mean.square().sum() - 1) / max(1, count - 1) if count > 1 else mean.square().sum()
        return own - 2 * (mean @ target) + target.square().sum()


class ForwardKL(Divergence):
    """KL(p ‖ q) up to a constant, q the average posterior: −mean_j log q(z_j) at fixed draws z_j of the prior.

    Both sides are convolved with a normal distribution of ``bandwidth``, because the density of a distant posterior
    has no gradient at z_j. Densities are scaled by a constant that brings ‖ψ‖ near 1, and clipped to norm 1; the
    constant does not change the gradient of the logarithm. Below ``floor`` the logarithm is continued linearly,
    because noise can make a density negative.
    """

    def __init__(self, prior: Prior, *, points: int = 64, bandwidth: float = 0.2, floor: float = 1e-3) -> None:
        self.points = prior.draw(points)
        self.points = self.points + bandwidth * torch.randn_like(self.points)
        self.bandwidth, self.floor = bandwidth, floor
        peak = (math.sqrt(2 * math.pi) * max(bandwidth, 1e-3)) ** -prior.latent_dim
        self._scale = 1.0 / (peak * math.sqrt(points / 2**prior.latent_dim))

    def embed(self, posterior: Posterior, noise: Tensor) -> Tensor:
        width = (posterior.std.square() + self.bandwidth**2).sqrt()
        points = self.points.to(posterior.mean)
        values = log_normal(points, posterior.mean[:, None], width[:, None]).sum(-1).exp() * self._scale
        return values / values.norm(dim=1, keepdim=True).clamp(min=1.0)

    def distance(self, mean: Tensor) -> Tensor:
        below = math.log(self.floor) + (mean - self.floor) / self.floor
        return -torch.where(mean > self.floor, mean.clamp(min=self.floor).log(), below).mean()
