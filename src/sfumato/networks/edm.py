"""Preconditioning, loss and stochastic sampler of EDM (Karras et al., 2022); pixels lie in -1..1."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from sfumato.networks.unet import UNet, use_channels_last

Denoise = Callable[[Tensor, Tensor], Tensor]
"""``denoise(noisy, sigma)``: the clean images, with one noise level for each row."""


def _column(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


class Denoiser(nn.Module):
    """``net(scaled images, log σ, labels)`` turned into an estimate of the clean image (equation 7).

    ``sigma_data`` is the standard deviation of the pixels that the scales assume; it is public.
    """

    def __init__(self, net: UNet, *, sigma_data: float = 0.5) -> None:
        super().__init__()
        self.net, self.sigma_data = net, sigma_data

    def scales(self, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """c_skip, c_out and c_in of table 1, each ``[rows, 1, 1, 1]``."""
        total = sigma.square() + self.sigma_data**2
        skip, out = self.sigma_data**2 / total, sigma * self.sigma_data * total.rsqrt()
        return _column(skip), _column(out), _column(total.rsqrt())

    def forward(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        skip, out, scale = self.scales(sigma)
        return skip * noisy + out * self.net(scale * noisy, sigma.log(), labels).to(noisy.dtype)

    def loss(self, clean: Tensor, noise: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """Squared error in units of c_out, averaged over pixels, ``[rows]``: equation 8 with λ(σ) = 1/c_out²."""
        skip, out, scale = self.scales(sigma)
        noisy = clean + _column(sigma) * noise
        output = self.net(scale * noisy, sigma.log(), labels).to(clean.dtype)
        return (output - (clean - skip * noisy) / out).square().flatten(1).mean(1)


def log_normal_sigma(quantile: Tensor, *, mean: float, deviation: float) -> Tensor:
    """Noise levels with ln σ ~ N(mean, deviation²), from uniform numbers; both tails are cut where σ stays finite."""
    normal = math.sqrt(2.0) * torch.erfinv(2.0 * quantile.clamp(1e-6, 1.0 - 1e-6) - 1.0)
    return torch.exp(mean + deviation * normal)


def stochastic_heun(denoise: Denoise, images: Tensor, sigmas: list[float], *, churn: float) -> Tensor:
    """Algorithm 2: before each step the noise is raised by a factor of 1 + min(churn / steps, √2 - 1).

    ``images`` hold noise of the level ``sigmas[0]``. The last step ends at zero, in the clean estimate. Without churn
    it is the deterministic solver. Fresh noise lets later steps mend the errors of earlier ones.
    """
    gain = min(churn / len(sigmas), math.sqrt(2.0) - 1.0)
    for sigma, below in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        raised = sigma * (1.0 + gain)
        if gain > 0.0:
            images = images + math.sqrt(raised**2 - sigma**2) * torch.randn_like(images)
        slope = (images - denoise(images, images.new_full((len(images),), raised))) / raised
        ahead = images + (below - raised) * slope
        if below > 0.0:
            second = (ahead - denoise(ahead, images.new_full((len(images),), below))) / below
            ahead = images + (below - raised) * (slope + second) / 2.0
        images = ahead
    return images


def half_precision(denoiser: Denoiser) -> Denoiser:
    """A copy in bfloat16 and channels-last, which samples several times as fast on a GPU."""
    copy = deepcopy(denoiser).to(torch.bfloat16)
    use_channels_last(copy)
    return copy
