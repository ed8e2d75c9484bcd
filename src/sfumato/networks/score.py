"""A compact noise-conditional U-Net that estimates the clean image behind a noisy one, and with it the score."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.gaussians import ClassGaussians
from sfumato.networks.pixels import Shape, per_row

_FREQUENCIES = 8


def sigma_features(sigma: Tensor) -> Tensor:
    """Fixed Fourier features of the logarithm of the noise level, ``[B, 2 · frequencies]``."""
    powers = torch.arange(_FREQUENCIES, device=sigma.device, dtype=sigma.dtype)
    angles = (sigma.log() / 4.0)[:, None] * (math.pi / 4.0 * 1.6**powers)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def groups(channels: int) -> int:
    """Groups of a group normalisation: up to eight, of at least four channels where possible."""
    return math.gcd(channels, min(8, max(1, channels // 4)))


class ConditionedBlock(nn.Module):
    """A residual block of two convolutions. Between them, label and noise level scale and shift every channel.

    Every block has its own label embedding, so that the label is not lost on the way from a noisy input.
    """

    def __init__(self, before: int, after: int, *, signal: int, classes: int) -> None:
        super().__init__()
        # Affine parameters would add noise and passes over the image; the next layer can do their work.
        self.first_norm = nn.GroupNorm(groups(before), before, affine=False)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.signal = nn.Linear(signal, 2 * after)
        self.label = nn.Embedding(classes, after)
        self.second_norm = nn.GroupNorm(groups(after), after, affine=False)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        nn.init.normal_(self.label.weight, std=0.5)
        # Near zero: at the start a block is close to its skip connection.
        nn.init.normal_(self.second.weight, std=0.3 / math.sqrt(9 * after))

    def forward(self, hidden: Tensor, signal: Tensor, labels: Tensor) -> Tensor:
        scale, shift = self.signal(signal).chunk(2, dim=1)
        shift = shift + self.label(labels)
        inner = self.second_norm(self.first(F.silu(self.first_norm(hidden))))
        inner = F.silu(torch.addcmul(shift[:, :, None, None], inner, 1.0 + scale[:, :, None, None]))
        output: Tensor = self.skip(hidden) + self.second(inner)
        return output


class UNet(nn.Module):
    """A U-Net for any height and width, with a skip connection at every resolution.

    It halves the image until a side has at most ``coarsest_size`` positions. ``patch_size`` × ``patch_size`` pixels
    are one position, so that large images cost no more than small ones.
    """

    def __init__(
        self, shape: Shape, classes: int, *, width: int, inputs: int, coarsest_size: int, patch_size: int
    ) -> None:
        super().__init__()
        self.patch_size, self.size = patch_size, shape[1:]
        channels, height, across = shape[0] * patch_size**2, -(-shape[1] // patch_size), -(-shape[2] // patch_size)
        sizes = 1 + max(0, math.ceil(math.log2(max(height, across) / coarsest_size)))
        widths = [width] + [2 * width] * (sizes - 1)
        signal = width
        kind = {"signal": signal, "classes": classes}
        self.level = nn.Linear(2 * _FREQUENCIES, signal)
        self.label = nn.Embedding(classes, signal)
        self.enter = nn.Conv2d(inputs * patch_size**2, width, 3, padding=1)
        befores = [width, *widths[:-1]]
        self.down = nn.ModuleList(ConditionedBlock(b, a, **kind) for b, a in zip(befores, widths, strict=True))
        self.middle = ConditionedBlock(widths[-1], widths[-1], **kind)
        self.up = nn.ModuleList(
            ConditionedBlock(below + own, own, **kind)
            for below, own in zip([widths[-1], *widths[:0:-1]], widths[::-1], strict=True)
        )
        self.leave_norm = nn.GroupNorm(groups(width), width, affine=False)
        self.leave = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.normal_(self.leave.weight, std=0.1 / math.sqrt(9 * width))

    def forward(self, images: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        signal = F.silu(self.level(sigma_features(sigma)) + self.label(labels))
        height, across = self.size
        padded = F.pad(images, (0, -across % self.patch_size, 0, -height % self.patch_size))
        hidden, kept = self.enter(F.pixel_unshuffle(padded, self.patch_size)), []
        for index, block in enumerate(self.down):
            if index:
                hidden = F.avg_pool2d(hidden, 2, ceil_mode=True)
            hidden = block(hidden, signal, labels)
            kept.append(hidden)
        hidden = self.middle(hidden, signal, labels)
        for block in self.up:
            beside = kept.pop()
            if hidden.shape[-2:] != beside.shape[-2:]:
                hidden = F.interpolate(hidden, size=beside.shape[-2:])
            hidden = block(torch.cat([hidden, beside], dim=1), signal, labels)
        output = F.pixel_shuffle(self.leave(F.silu(self.leave_norm(hidden))), self.patch_size)
        return output[..., :height, :across]


class ScoreNetwork(nn.Module):
    """Denoises an image given its noise level and its label; pixels lie in −1..1.

    A Gaussian for each class gives a linear estimate of the clean image. The U-Net sees that estimate and the noisy
    image, and learns the residual. At large noise levels the estimate still depends on the label.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        *,
        width: int = 32,
        coarsest_size: int = 7,
        patch_size: int = 1,
        frequencies: int = 14,
        sigma_data: float = 0.5,
    ) -> None:
        super().__init__()
        self.gaussians = ClassGaussians(shape, classes, frequencies=frequencies, sigma_data=sigma_data)
        self.net = UNet(
            shape, classes, width=width, inputs=2 * shape[0], coarsest_size=coarsest_size, patch_size=patch_size
        )

    def residual(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The U-Net's output, of about unit size at every noise level; the linear estimate; the size of one unit."""
        linear, size = self.gaussians.estimate(noisy, sigma, labels)
        mean = self.gaussians.means[labels]
        known = (noisy - mean) / per_row(self.gaussians.size(sigma, labels))
        output: Tensor = self.net(torch.cat([known, linear], dim=1), sigma, labels)
        return output, linear, per_row(size)

    def denoise(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The expected clean image."""
        output, linear, size = self.residual(noisy, sigma, labels)
        return linear + size * output.to(noisy.dtype)

    def start(self, labels: Tensor, sigma: float) -> Tensor:
        """Noisy images of this level, large enough to hide all but the Gaussians; with torch's global generator."""
        return self.gaussians.draw(labels, sigma)

    def score(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the log-density of noisy images."""
        return (self.denoise(noisy, sigma, labels) - noisy) / per_row(sigma.square())

    forward = denoise
