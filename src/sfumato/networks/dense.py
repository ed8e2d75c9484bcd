"""A variational autoencoder of fully connected layers, for images of any size and for points in a plane."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.networks.pixels import Shape, one_hot
from sfumato.networks.priors import log_normal

_LOG_STD_MIN, _LOG_STD_MAX = -5.0, 3.0


@dataclass(frozen=True)
class Posterior:
    """q(z | x) for each row: a normal distribution with diagonal covariance."""

    mean: Tensor
    std: Tensor

    def draw(self, noise: Tensor) -> Tensor:
        """Latent codes by the reparametrisation of standard normal ``noise``."""
        return self.mean + self.std * noise

    def log_density(self, codes: Tensor) -> Tensor:
        """Log-density of codes ``[B, latent_dim]``, ``[B]``."""
        return log_normal(codes, self.mean, self.std).sum(-1)


class VariationalAutoencoder(nn.Module):
    """Image and label to a posterior over the latent code; code and label to the logits of the pixels."""

    def __init__(self, shape: Shape, classes: int, *, latent_dim: int, hidden: int, depth: int = 1) -> None:
        super().__init__()
        if min(latent_dim, hidden, depth) < 1:
            raise ValueError(f"latent_dim, hidden and depth must be at least 1, not {latent_dim}, {hidden} and {depth}")
        self.shape, self.latent_dim = shape, latent_dim
        self.labels = classes if classes > 1 else 0
        pixels = torch.Size(shape).numel()
        widths = [hidden] * depth
        self.down = _layers(pixels + self.labels, widths)
        self.encode_mean = nn.Linear(hidden, latent_dim)
        self.encode_deviation = nn.Linear(hidden, latent_dim)
        self.up = _layers(latent_dim + self.labels, widths)
        self.decode_last = nn.Linear(hidden, pixels)

    def encode(self, images: Tensor, labels: Tensor) -> Posterior:
        """The posterior of each image; pixels are centred by a constant of their domain."""
        hidden = _through(self.down, self._with(2.0 * images.flatten(1) - 1.0, labels))
        std = self.encode_deviation(hidden).clamp(_LOG_STD_MIN, _LOG_STD_MAX).exp()
        return Posterior(self.encode_mean(hidden), std)

    def decode(self, codes: Tensor, labels: Tensor) -> Tensor:
        """Logits of the pixels."""
        logits: Tensor = self.decode_last(_through(self.up, self._with(codes, labels)))
        return logits.view(-1, *self.shape)

    def _with(self, values: Tensor, labels: Tensor) -> Tensor:
        if not self.labels:
            return values
        return torch.cat([values, one_hot(labels, self.labels, values)], dim=1)


def _layers(first: int, widths: list[int]) -> nn.ModuleList:
    sizes = [first, *widths]
    return nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, widths, strict=False))


def _through(layers: nn.ModuleList, values: Tensor) -> Tensor:
    for layer in layers:
        values = torch.tanh(layer(values))
    return values
