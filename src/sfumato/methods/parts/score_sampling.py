"""Drawing images from a score network: the parameters and the loop that DPPM and its published form share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, cast, get_args

import torch
from torch import Tensor
from torch.func import jvp

from sfumato.methods.base import Method, check_choices
from sfumato.networks.edm import heun
from sfumato.networks.pixels import per_row
from sfumato.networks.score import Momentum, hamiltonian, karras_sigmas

DERIVATIVES = ("forward", "difference")
_DIFFERENCE = 0.03  # of the noise level; smaller steps would lose digits in TF32


class Denoiser(Protocol):
    """A network that denoises images at a noise level."""

    def score(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the log-density of noisy images."""

    def denoise(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The expected clean images."""

    def start(self, labels: Tensor, sigma: float) -> Tensor:
        """Noisy images to start from."""


@dataclass(frozen=True)
class ScoreSampling(Method):
    """A method that draws from a score network."""

    sampler: str = "heun"
    sampling_steps: int = 18
    sigma_max: float = 10.0
    sigma_min: float = 0.2
    rho: float = 7.0
    leapfrog_steps: int = 3
    step_size: float = 0.5
    momentum_distribution: str = "gaussian"
    metropolis: bool = True
    log_sigma_mean: float = -0.7
    log_sigma_std: float = 1.2
    derivative: str = "forward"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(
            self,
            {
                "sampler": ("hamiltonian", "heun"),
                "momentum_distribution": get_args(Momentum),
                "derivative": DERIVATIVES,
            },
        )
        if self.rho == 0:
            raise ValueError("rho cannot be 0; 7 is the default and -2 the paper's")
        if not 0 < self.sigma_min < self.sigma_max:
            raise ValueError("sigma_min must be positive and below sigma_max")

    def training_sigma(self, quantile: Tensor) -> Tensor:
        """Noise levels of the training at these quantiles (0 to 1) of a log-normal distribution."""
        # The ends, where a level would be 0 or infinite, are cut off.
        normal = torch.special.ndtri(quantile.clamp(1e-6, 1.0 - 1e-6))
        return torch.exp(self.log_sigma_mean + self.log_sigma_std * normal)

    def draw(self, network: Denoiser, labels: Tensor, *, bfloat16: bool = False) -> Tensor:
        """Images in 0..1 for these labels, with torch's global generator."""

        def denoise(images: Tensor, sigma: Tensor) -> Tensor:
            with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
                clean = network.denoise(images, sigma, labels)
            # An estimate outside the range of pixels is known to be wrong.
            return torch.nan_to_num(clean.to(images.dtype)).clamp(-1.0, 1.0)

        def score(images: Tensor, sigma: Tensor) -> Tensor:
            return (denoise(images, sigma) - images) / per_row(sigma.square())

        sigmas = karras_sigmas(self.sampling_steps, sigma_max=self.sigma_max, sigma_min=self.sigma_min, rho=self.rho)
        images = network.start(labels, self.sigma_max)
        if self.sampler == "heun":
            images = heun(denoise, images, sigmas)
        else:
            images = hamiltonian(
                score,
                images,
                sigmas,
                leapfrog_steps=self.leapfrog_steps,
                step_size=self.step_size,
                momentum_distribution=cast(Momentum, self.momentum_distribution),
                metropolis=self.metropolis,
            )
            images = denoise(images, images.new_full((len(images),), sigmas[-1]))
        return ((images + 1.0) / 2.0).clamp(0.0, 1.0)


def randomised_response(similarity: Tensor, *, neighbours: int, epsilon: float, uniform: Tensor) -> Tensor:
    """Equation (6) of DPPM: for each row the index of itself, or of another of its nearest neighbours.

    Args:
        similarity: Similarities ``[rows, pool]``; each row is most similar to itself.
        neighbours: The number k of nearest neighbours, itself included.
        epsilon: The ε of the randomised response.
        uniform: Uniform random numbers, ``[rows, 2]``.
    """
    nearest = similarity.topk(neighbours, dim=1).indices
    keep = 1.0 / (1.0 + (neighbours - 1) * math.exp(-epsilon))
    other = 1 + (uniform[:, 1] * (neighbours - 1)).long().clamp(max=neighbours - 2)
    place = torch.where(uniform[:, 0] < keep, torch.zeros_like(other), other)
    return nearest.gather(1, place[:, None])[:, 0]


def sliced_loss(
    model: Denoiser,
    noisy: Tensor,
    sigma: Tensor,
    labels: Tensor,
    projection: Tensor,
    response: Tensor,
    *,
    derivative: str = "forward",
    line: str = "second",
    all_directions: bool = False,
) -> Tensor:
    """Equation (7) of DPPM times σ² ÷ pixels, so that every noise level counts, ``[B]``.

    Its second line is vʳᵀ ∇s vʳ + ½ (vᵀ s)². Its first line, ½ (vʳᵀ ∇log p − vᵀ s)², is vᵀ ∇s vʳ + ½ (vᵀ s)² after
    integration by parts: the two are equal only where vʳ = v.

    Args:
        model: The score network.
        noisy: Noisy images.
        sigma: Their noise levels.
        labels: Their labels.
        projection: The vectors v.
        response: The vectors vʳ, which are v after its randomised response, or v itself.
        derivative: Along vʳ: ``forward`` differentiation, or a central ``difference`` over ±0.03 σ vʳ, which takes two
            ordinary passes and is an approximation.
        line: The ``first`` or ``second`` line of the equation.
        all_directions: Take ‖s‖², the expectation of (vᵀ s)² over v, in its place, which has less variance.
    """
    if derivative == "forward":

        def score(images: Tensor) -> Tensor:
            return model.score(images, sigma, labels)

        value, slope = cast(tuple[Tensor, Tensor], jvp(score, (noisy,), (response,)))
    else:
        distance = _DIFFERENCE * per_row(sigma)
        above = model.score(noisy + distance * response, sigma, labels)
        below = model.score(noisy - distance * response, sigma, labels)
        value, slope = (above + below) / 2.0, (above - below) / (2.0 * distance)
    curvature = ((projection if line == "first" else response) * slope).flatten(1).sum(1)
    squared = value.square().flatten(1).sum(1) if all_directions else (projection * value).flatten(1).sum(1).square()
    return sigma.square() * (curvature + squared / 2.0) / noisy[0].numel()
