"""Prior distributions over latent codes: log-density, draws, and the characteristic function for mean embeddings."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def log_normal(values: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Log-density of a normal distribution, element by element."""
    # A number is filled in on the device: copying it there would wait for a GPU.
    std = std.to(values) if isinstance(std, Tensor) else values.new_full((), std)
    return -0.5 * ((values - mean) / std).square() - std.log() - _HALF_LOG_2PI


class Prior(ABC):
    """A public distribution over latent codes."""

    def __init__(self, latent_dim: int) -> None:
        self.latent_dim = latent_dim

    @abstractmethod
    def log_density(self, codes: Tensor) -> Tensor:
        """Log-density of codes ``[..., latent_dim]``, ``[...]``."""

    @abstractmethod
    def draw(self, count: int) -> Tensor:
        """Codes ``[count, latent_dim]``, with torch's global generator."""

    @abstractmethod
    def characteristic_function(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """E cos(ω z_d) and E sin(ω z_d), each ``[frequencies]``; all dimensions d have the same distribution."""


class StandardNormal(Prior):
    """N(0, 1) in every dimension."""

    def log_density(self, codes: Tensor) -> Tensor:
        return log_normal(codes, 0.0, 1.0).sum(-1)

    def draw(self, count: int) -> Tensor:
        return torch.randn(count, self.latent_dim)

    def characteristic_function(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(-frequencies.square() / 2), torch.zeros_like(frequencies)


class SparseMixture(Prior):
    """Spike and slab: every dimension is N(0, ``spike_std``²) with probability ``sparsity``, else N(0, 1)."""

    def __init__(self, latent_dim: int, *, sparsity: float = 0.8, spike_std: float = math.sqrt(0.05)) -> None:
        super().__init__(latent_dim)
        self.sparsity, self.spike_std = sparsity, spike_std

    def log_density(self, codes: Tensor) -> Tensor:
        on = math.log(1 - self.sparsity) + log_normal(codes, 0.0, 1.0)
        return torch.logaddexp(on, math.log(self.sparsity) + log_normal(codes, 0.0, self.spike_std)).sum(-1)

    def draw(self, count: int) -> Tensor:
        spike = torch.rand(count, self.latent_dim) < self.sparsity
        return torch.where(spike, self.spike_std, 1.0) * torch.randn(count, self.latent_dim)

    def characteristic_function(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        squares = frequencies.square() / 2
        cosine = (1 - self.sparsity) * torch.exp(-squares) + self.sparsity * torch.exp(-squares * self.spike_std**2)
        return cosine, torch.zeros_like(frequencies)


class Corners(Prior):
    """Narrow normal distributions of equal weight at the corners of the unit cube, four of them in two dimensions."""

    def __init__(self, latent_dim: int, *, std: float = 0.03) -> None:
        super().__init__(latent_dim)
        if latent_dim > 6:
            raise ValueError(
                f"a cube of {latent_dim} dimensions has {2**latent_dim} corners; latent_dim must be at most 6"
            )
        self.std = std
        self.corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=latent_dim)))

    def log_density(self, codes: Tensor) -> Tensor:
        corners = self.corners.to(codes)
        each = log_normal(codes.unsqueeze(-2), corners, self.std).sum(-1)
        return torch.logsumexp(each, -1) - math.log(len(corners))

    def draw(self, count: int) -> Tensor:
        corners = self.corners.to(torch.get_default_dtype())
        return corners[torch.randint(len(corners), (count,))] + self.std * torch.randn(count, self.latent_dim)

    def characteristic_function(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        fade = torch.exp(-(frequencies * self.std).square() / 2)
        return fade * (1 + frequencies.cos()) / 2, fade * frequencies.sin() / 2
