"""Encoders and decoders of variational autoencoders, convolutional or dense; no layer mixes the rows of a batch."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.pixels import Shape, one_hot

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


_SMALLEST, _LARGEST = 8, 256
_SEED = 7  # pixels: the side at which halving stops
# Channels of the first convolution by the number of halvings: 28², 32², 64², 128² and 256² pixels.
_WIDTHS = {1: 32, 2: 32, 3: 64, 4: 32, 5: 32, 6: 16}


def halvings(shape: Shape) -> list[tuple[int, int]]:
    """The image size after each strided convolution, from the whole image down to at most 7 pixels a side."""
    _, height, width = shape
    if min(height, width) < _SMALLEST or max(height, width) > _LARGEST:
        raise ValueError(
            f"an image must have between {_SMALLEST} and {_LARGEST} pixels a side, not {height}×{width}; use --size"
        )
    sizes = [(height, width)]
    while max(sizes[-1]) > _SEED:
        sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
    return sizes


def _upwards(pairs: list[tuple[int, int]], sizes: list[tuple[int, int]]) -> nn.ModuleList:
    """Transposed convolutions back through these pairs of channels. An odd size needs one pixel less."""
    return nn.ModuleList(
        nn.ConvTranspose2d(b, a, 3, stride=2, padding=1, output_padding=((h + 1) % 2, (w + 1) % 2))
        for (a, b), (h, w) in reversed(list(zip(pairs, sizes, strict=False)))
    )


def _up_to_pixels(layers: nn.ModuleList, hidden: Tensor) -> Tensor:
    for place, layer in enumerate(layers):
        hidden = layer(F.relu(hidden) if place else hidden)
    return hidden


class Autoencoder(nn.Module):
    """Strided 3×3 convolutions down to a latent code, and transposed ones back to the logits of the pixels.

    28×28 has two convolutions, 32×32 three, 256×256 six; each has twice the channels of the one before. ``width`` is
    the number of channels of the first; 0 takes it from the image size.

    >>> [layer.out_channels for layer in Autoencoder((3, 32, 32), latent_dim=32).down]
    [64, 128, 256]
    """

    def __init__(self, shape: Shape, *, latent_dim: int, width: int = 0) -> None:
        super().__init__()
        if latent_dim < 1 or width < 0:
            raise ValueError(f"latent_dim must be at least 1 and width at least 0, not {latent_dim} and {width}")
        sizes = halvings(shape)
        width = width or _WIDTHS[len(sizes) - 1]
        channels = [shape[0], *(width << level for level in range(len(sizes) - 1))]
        self.seed = (channels[-1], *sizes[-1])
        flat = self.seed[0] * self.seed[1] * self.seed[2]
        pairs = list(pairwise(channels))
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False) for a, b in pairs)
        self.encode_last = nn.Linear(flat, latent_dim)
        self.decode_first = nn.Linear(latent_dim, flat)
        self.up = _upwards(pairs, sizes)

    def features(self, images: Tensor) -> Tensor:
        """Features of images ``[B, C, H, W]`` in 0..1, from which the code is computed."""
        hidden = images
        for layer in self.down:
            hidden = F.relu(layer(hidden))
        return hidden.flatten(1)

    def encode(self, images: Tensor) -> Tensor:
        """Latent codes ``[B, latent_dim]`` of images in 0..1."""
        code: Tensor = self.encode_last(self.features(images))
        return code

    def decode(self, code: Tensor) -> Tensor:
        """Logits of the pixels of codes ``[B, latent_dim]``; a sigmoid makes images of them."""
        hidden = F.relu(self.decode_first(code)).unflatten(1, self.seed)
        return _up_to_pixels(self.up, hidden)

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images))


LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""Range of a posterior's log standard deviation; outside it, gradient steps vanish or overflow."""


def channels_of(shape: Shape, width: int, *, narrowing: bool = False) -> tuple[int, ...]:
    """Channels after each strided convolution: doubling from ``width``, or halving where ``narrowing``."""
    levels = range(len(halvings(shape)) - 1)
    return tuple(max(1, width >> level) if narrowing else width << level for level in levels)


class Encoder(nn.Module):
    """Images ``[B, C, H, W]`` and labels to posteriors ``[B, 2, latent_dim]``."""

    def __init__(self, shape: Shape, *, latent_dim: int, channels: Sequence[int], labels: int = 0) -> None:
        """Build the layers; with ``labels`` classes, the label's one-hot vector is an input of the last layer."""
        super().__init__()
        last = halvings(shape)[-1]
        self.latent_dim, self.labels = latent_dim, labels
        self.down = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise([shape[0], *channels]))
        self.last = nn.Linear(channels[-1] * last[0] * last[1] + labels, 2 * latent_dim)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = images
        for layer in self.down:
            hidden = F.leaky_relu(layer(hidden), 0.1)
        hidden = hidden.flatten(1)
        if self.labels:
            hidden = torch.cat([hidden, one_hot(labels, self.labels, hidden)], dim=1)
        posterior: Tensor = self.last(hidden)
        return posterior.unflatten(1, (2, self.latent_dim))


class Decoder(nn.Module):
    """Latent codes ``[B, latent_dim]`` and labels to the logits of the pixels ``[B, C, H, W]``."""

    def __init__(
        self,
        shape: Shape,
        *,
        latent_dim: int,
        channels: Sequence[int],
        labels: int = 0,
        first_layer_per_label: bool = False,
    ) -> None:
        """Build the layers.

        Args:
            shape: Channels, height and width of the images.
            latent_dim: Dimensions of the latent code.
            channels: Channels of the matching encoder, from the image inwards.
            labels: Number of classes; 0 for a decoder that does not see the label.
            first_layer_per_label: Give every class a first layer of its own. Otherwise the label's one-hot vector is
                concatenated with the code.
        """
        super().__init__()
        sizes = halvings(shape)
        self.latent_dim, self.labels, self.first_layer_per_label = latent_dim, labels, first_layer_per_label
        self.seed = (channels[-1], *sizes[-1])
        flat = self.seed[0] * self.seed[1] * self.seed[2]
        inputs = (latent_dim + 1) * labels if first_layer_per_label else latent_dim + labels
        self.first = nn.Linear(inputs, flat, bias=not first_layer_per_label)
        if first_layer_per_label:
            # A row meets the weights of one label only, so they start as those of a layer with latent_dim + 1 inputs.
            nn.init.uniform_(self.first.weight, -((latent_dim + 1) ** -0.5), (latent_dim + 1) ** -0.5)
        pairs = list(pairwise([shape[0], *channels]))
        self.up = _upwards(pairs, sizes)

    def forward(self, code: Tensor, labels: Tensor) -> Tensor:
        """Logits of the pixels; a sigmoid makes images of them."""
        if self.first_layer_per_label:
            with_bias = torch.cat([code, torch.ones_like(code[:, :1])], dim=1)
            code = (one_hot(labels, self.labels, code)[:, :, None] * with_bias[:, None, :]).flatten(1)
        elif self.labels:
            code = torch.cat([code, one_hot(labels, self.labels, code)], dim=1)
        hidden = F.relu(self.first(code)).unflatten(1, self.seed)
        return _up_to_pixels(self.up, hidden)


class ConvolutionalVAE(nn.Module):
    """Encoder and decoder together. Its forward pass is the loss."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """Negative ELBO at one draw of standard normal ``noise``, ``[B]``."""
        posterior = clamp_log_std(self.encoder(images, labels))
        return bernoulli_nll(self.decoder(reparametrise(posterior, noise), labels), images) + kl_to_normal(posterior)


def clamp_log_std(posterior: Tensor) -> Tensor:
    """The posterior with its log standard deviation clamped to ``LOG_STD_MIN`` and ``LOG_STD_MAX``."""
    mean, log_std = posterior.unbind(1)
    return torch.stack([mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)], dim=1)


def reparametrise(posterior: Tensor, noise: Tensor) -> Tensor:
    """A latent code of each posterior from standard normal ``noise``, ``[B, latent_dim]``."""
    return posterior[:, 0] + posterior[:, 1].exp() * noise


def bernoulli_nll(logits: Tensor, images: Tensor) -> Tensor:
    """Binary cross-entropy summed over the pixels of each row, ``[B]``."""
    return F.binary_cross_entropy_with_logits(logits, images, reduction="none").flatten(1).sum(1)


def kl_to_normal(posterior: Tensor) -> Tensor:
    """KL divergence of each posterior from the standard normal distribution, ``[B]``."""
    mean, log_std = posterior.unbind(1)
    return 0.5 * (mean.square() + (2.0 * log_std).exp() - 1.0 - 2.0 * log_std).sum(1)


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
