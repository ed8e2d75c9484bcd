"""EDM (Karras et al., 2022): a class-conditional U-Net, its preconditioning and loss, and the stochastic sampler.

Pixels lie in -1..1. The U-Net takes images of 28 to 128 pixels and is made of layers whose
per-record gradients are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, int, int]

_FREQUENCIES = 16
_COARSEST = 8  # pixels a side at the lowest resolution, at most


def noise_features(log_sigma: Tensor) -> Tensor:
    """Sinusoidal features of the logarithm of the noise level, ``[rows, 32]``."""
    powers = torch.arange(_FREQUENCIES, device=log_sigma.device, dtype=log_sigma.dtype)
    angles = (log_sigma / 4.0)[:, None] * (math.pi / 4.0 * 1.35**powers)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def use_channels_last(network: nn.Module) -> None:
    """Store the weights of convolutions channels-last, which tensor cores read fastest; the values stay the same."""
    for weight in network.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def _norm(channels: int) -> nn.GroupNorm:
    """Up to eight groups. Without scales of its own: they would add noise, and the next layer can do their work."""
    return nn.GroupNorm(math.gcd(channels, min(8, max(1, channels // 4))), channels, affine=False)


class ResidualBlock(nn.Module):
    """Two convolutions; between them the noise level scales and shifts every channel and the label shifts it."""

    def __init__(self, inputs: int, outputs: int, *, embedding: int, classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(inputs), _norm(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.condition = nn.Linear(embedding, 2 * outputs)
        self.label = nn.Embedding(classes, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.normal_(self.label.weight, std=0.5)
        # Small, so that at the start a block passes on what it gets.
        nn.init.normal_(self.conv2.weight, std=0.3 / math.sqrt(9 * outputs))

    def forward(self, hidden: Tensor, embedding: Tensor, labels: Tensor) -> Tensor:
        scale, shift = self.condition(embedding).chunk(2, dim=1)
        shift = shift + self.label(labels)
        inner = self.norm2(self.conv1(F.silu(self.norm1(hidden))))
        inner = F.silu(inner * (1.0 + scale[:, :, None, None]) + shift[:, :, None, None])
        output: Tensor = self.skip(hidden) + self.conv2(inner)
        return output


class UNet(nn.Module):
    """``forward(images, log_sigma, labels)`` of the images' shape.

    The resolution is halved until no side is longer than eight pixels. The highest has ``width`` channels and the
    others twice as many, with ``blocks`` residual blocks each on the way down and on the way up. A ``patch`` of 2
    makes 2 × 2 pixels one position, which is about four times as fast.
    """

    def __init__(self, shape: Shape, classes: int, *, width: int, patch: int = 1, blocks: int = 1) -> None:
        super().__init__()
        self.shape, self.patch = shape, patch
        channels, side = shape[0] * patch**2, -(-max(shape[1:]) // patch)
        levels = 1 + max(0, math.ceil(math.log2(side / _COARSEST)))
        widths, embedding = [width] + [2 * width] * (levels - 1), 4 * width
        conditioned = {"embedding": embedding, "classes": classes}
        self.noise = nn.Linear(2 * _FREQUENCIES, embedding)
        self.label = nn.Embedding(classes, embedding)
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        at, skips = width, [width]
        for outputs in widths:
            self.down.append(nn.ModuleList())
            for _ in range(blocks):
                self.down[-1].append(ResidualBlock(at, outputs, **conditioned))  # type: ignore[operator]
                at = outputs
                skips.append(at)
        self.middle = ResidualBlock(at, at, **conditioned)
        for outputs in reversed(widths):
            self.up.append(nn.ModuleList())
            for _ in range(blocks):
                self.up[-1].append(ResidualBlock(at + skips.pop(), outputs, **conditioned))  # type: ignore[operator]
                at = outputs
        self.norm = _norm(at)
        self.leave = nn.Conv2d(at, channels, 3, padding=1)
        nn.init.normal_(self.leave.weight, std=0.1 / math.sqrt(9 * at))

    def forward(self, images: Tensor, log_sigma: Tensor, labels: Tensor) -> Tensor:
        dtype = self.enter.weight.dtype
        embedding = F.silu(self.noise(noise_features(log_sigma).to(dtype)) + self.label(labels))
        height, width = self.shape[1:]
        padded = F.pad(images.to(dtype), (0, -width % self.patch, 0, -height % self.patch))
        hidden, skips = self.enter(F.pixel_unshuffle(padded, self.patch)), []
        for level, down in enumerate(self.down):
            hidden = F.avg_pool2d(hidden, 2, ceil_mode=True) if level else hidden
            for block in down:  # type: ignore[attr-defined]
                hidden = block(hidden, embedding, labels)
                skips.append(hidden)
        hidden = self.middle(hidden, embedding, labels)
        for up in self.up:
            if hidden.shape[-2:] != skips[-1].shape[-2:]:
                hidden = F.interpolate(hidden, size=skips[-1].shape[-2:])
            for block in up:  # type: ignore[attr-defined]
                hidden = block(torch.cat([hidden, skips.pop()], dim=1), embedding, labels)
        output = F.pixel_shuffle(self.leave(F.silu(self.norm(hidden))), self.patch)
        return output[..., :height, :width]


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


def heun(denoise: Denoise, images: Tensor, sigmas: list[float], *, churn: float = 0.0) -> Tensor:
    """Heun's method, algorithm 2: before each step the noise grows by a factor of 1 + min(churn / steps, √2 - 1).

    ``images`` hold noise of the level ``sigmas[0]``. The last step ends at zero, in the clean estimate. Without churn
    it is the deterministic solver (algorithm 1). Fresh noise lets later steps mend the errors of earlier ones.
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
