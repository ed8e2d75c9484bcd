"""What a variational autoencoder's codes should look like: densities, draws, and waves for mean embeddings."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

_LOG_ROOT = 0.5 * math.log(2 * math.pi)


def log_normal(values: Tensor, mean: Tensor | float, deviation: Tensor | float) -> Tensor:
    """The log-density of a normal distribution, number by number."""
    deviation = torch.as_tensor(deviation, dtype=values.dtype, device=values.device)
    return -0.5 * ((values - mean) / deviation).square() - deviation.log() - _LOG_ROOT


class Prior(ABC):
    """A public distribution over codes."""

    def __init__(self, code: int) -> None:
        self.code = code

    @abstractmethod
    def log_density(self, codes: Tensor) -> Tensor:
        """``[..., code]`` → ``[...]``."""

    @abstractmethod
    def draw(self, count: int) -> Tensor:
        """``[count, code]``, with torch's global generator."""

    @abstractmethod
    def wave(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """E cos(ω z_d) and E sin(ω z_d), each ``[frequencies]``: the same in every dimension d."""


class StandardNormal(Prior):
    """N(0, 1) in every dimension."""

    def log_density(self, codes: Tensor) -> Tensor:
        return log_normal(codes, 0.0, 1.0).sum(-1)

    def draw(self, count: int) -> Tensor:
        return torch.randn(count, self.code)

    def wave(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(-frequencies.square() / 2), torch.zeros_like(frequencies)


class SparseMixture(Prior):
    """In every dimension off, N(0, narrow²), with probability ``off``, or on, N(0, 1)."""

    def __init__(self, code: int, *, off: float = 0.8, narrow: float = math.sqrt(0.05)) -> None:
        super().__init__(code)
        self.off, self.narrow = off, narrow

    def log_density(self, codes: Tensor) -> Tensor:
        on = math.log(1 - self.off) + log_normal(codes, 0.0, 1.0)
        return torch.logaddexp(on, math.log(self.off) + log_normal(codes, 0.0, self.narrow)).sum(-1)

    def draw(self, count: int) -> Tensor:
        off = torch.rand(count, self.code) < self.off
        return torch.where(off, self.narrow, 1.0) * torch.randn(count, self.code)

    def wave(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        squares = frequencies.square() / 2
        cosine = (1 - self.off) * torch.exp(-squares) + self.off * torch.exp(-squares * self.narrow**2)
        return cosine, torch.zeros_like(frequencies)


class Corners(Prior):
    """Narrow normals of equal weight at the corners of the unit cube: four of them where the code has two numbers."""

    def __init__(self, code: int, *, deviation: float = 0.03) -> None:
        super().__init__(code)
        if code > 6:
            raise ValueError(f"a cube of {code} dimensions has {2**code} corners; use a code of at most 6 numbers")
        self.deviation = deviation
        self.corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=code)))

    def log_density(self, codes: Tensor) -> Tensor:
        corners = self.corners.to(codes)
        each = log_normal(codes.unsqueeze(-2), corners, self.deviation).sum(-1)
        return torch.logsumexp(each, -1) - math.log(len(corners))

    def draw(self, count: int) -> Tensor:
        corners = self.corners.to(torch.get_default_dtype())
        return corners[torch.randint(len(corners), (count,))] + self.deviation * torch.randn(count, self.code)

    def wave(self, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        fade = torch.exp(-(frequencies * self.deviation).square() / 2)
        return fade * (1 + frequencies.cos()) / 2, fade * frequencies.sin() / 2
