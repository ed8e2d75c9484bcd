"""A compact noise-conditional U-Net that estimates the clean image behind a noisy one, and with it the score."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.gaussians import ClassGaussians, column

Shape = tuple[int, int, int]
_FREQUENCIES = 8


def level_features(level: Tensor) -> Tensor:
    """``[rows, 2 * frequencies]``: sines and cosines of the noise level's logarithm; nothing to learn."""
    powers = torch.arange(_FREQUENCIES, device=level.device, dtype=level.dtype)
    angles = (level.log() / 4.0)[:, None] * (math.pi / 4.0 * 1.6**powers)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def groups(channels: int) -> int:
    """Groups for a normalisation: up to eight, of at least four channels where there are as many."""
    return math.gcd(channels, min(8, max(1, channels // 4)))


class Conditioned(nn.Module):
    """A residual block of two convolutions. Between them, label and noise level scale and shift every channel.

    The label has a vector of its own in every block: added to each place of the picture, it cannot be lost on the way
    from the input, however noisy that is.
    """

    def __init__(self, before: int, after: int, *, signal: int, classes: int) -> None:
        super().__init__()
        # Scales of their own would cost a pass over the picture each, and noise; the next layer can do their work.
        self.first_norm = nn.GroupNorm(groups(before), before, affine=False)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.signal = nn.Linear(signal, 2 * after)
        self.label = nn.Embedding(classes, after)
        self.second_norm = nn.GroupNorm(groups(after), after, affine=False)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        nn.init.normal_(self.label.weight, std=0.5)
        # Near zero: at the start a block passes on what it gets.
        nn.init.normal_(self.second.weight, std=0.3 / math.sqrt(9 * after))

    def forward(self, hidden: Tensor, signal: Tensor, labels: Tensor) -> Tensor:
        scale, shift = self.signal(signal).chunk(2, dim=1)
        shift = shift + self.label(labels)
        inner = self.second_norm(self.first(F.silu(self.first_norm(hidden))))
        inner = F.silu(torch.addcmul(shift[:, :, None, None], inner, 1.0 + scale[:, :, None, None]))
        output: Tensor = self.skip(hidden) + self.second(inner)
        return output


class UNet(nn.Module):
    """Halve down to ``coarsest`` places a side, double again, with a skip at every size; any height and width.

    ``patch`` × ``patch`` pixels are one place: larger pictures at the cost of smaller ones.
    """

    def __init__(self, shape: Shape, classes: int, *, width: int, inputs: int, coarsest: int, patch: int) -> None:
        super().__init__()
        self.patch, self.size = patch, shape[1:]
        channels, height, across = shape[0] * patch**2, -(-shape[1] // patch), -(-shape[2] // patch)
        sizes = 1 + max(0, math.ceil(math.log2(max(height, across) / coarsest)))
        widths = [width] + [2 * width] * (sizes - 1)
        signal = width
        kind = {"signal": signal, "classes": classes}
        self.level = nn.Linear(2 * _FREQUENCIES, signal)
        self.label = nn.Embedding(classes, signal)
        self.enter = nn.Conv2d(inputs * patch**2, width, 3, padding=1)
        befores = [width, *widths[:-1]]
        self.down = nn.ModuleList(Conditioned(b, a, **kind) for b, a in zip(befores, widths, strict=True))
        self.middle = Conditioned(widths[-1], widths[-1], **kind)
        self.up = nn.ModuleList(
            Conditioned(below + own, own, **kind)
            for below, own in zip([widths[-1], *widths[:0:-1]], widths[::-1], strict=True)
        )
        self.leave_norm = nn.GroupNorm(groups(width), width, affine=False)
        self.leave = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.normal_(self.leave.weight, std=0.1 / math.sqrt(9 * width))

    def forward(self, images: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        signal = F.silu(self.level(level_features(level)) + self.label(labels))
        height, across = self.size
        padded = F.pad(images, (0, -across % self.patch, 0, -height % self.patch))
        hidden, kept = self.enter(F.pixel_unshuffle(padded, self.patch)), []
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
        output = F.pixel_shuffle(self.leave(F.silu(self.leave_norm(hidden))), self.patch)
        return output[..., :height, :across]


class ScoreNetwork(nn.Module):
    """The clean image given a noisy one, its noise level and its label; pixels lie in -1..1.

    A class is first taken for a Gaussian, for which the best estimate is linear; the U-Net, which sees that estimate
    beside the noisy image, learns what it leaves. So where noise hides the image, the label still says what to draw.
    """

    def __init__(
        self,
        shape: Shape,
        classes: int,
        *,
        width: int = 32,
        coarsest: int = 7,
        patch: int = 1,
        frequencies: int = 14,
        spread: float = 0.5,
    ) -> None:
        super().__init__()
        self.gaussians = ClassGaussians(shape, classes, frequencies=frequencies, spread=spread)
        self.net = UNet(shape, classes, width=width, inputs=2 * shape[0], coarsest=coarsest, patch=patch)

    def residual(self, noisy: Tensor, level: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The network's own part, of about unit size at every noise level; the linear estimate; what one unit is."""
        linear, size = self.gaussians.estimate(noisy, level, labels)
        mean = self.gaussians.means[labels]
        known = (noisy - mean) / column(self.gaussians.size(level, labels))
        output: Tensor = self.net(torch.cat([known, linear], dim=1), level, labels)
        return output, linear, column(size)

    def denoise(self, noisy: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        output, linear, size = self.residual(noisy, level, labels)
        return linear + size * output.to(noisy.dtype)

    def start(self, labels: Tensor, level: float) -> Tensor:
        """Noisy images of this level, large enough to hide all but the Gaussian; from torch's global generator."""
        return self.gaussians.draw(labels, level)

    def score(self, noisy: Tensor, level: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the log-density of noisy images."""
        return (self.denoise(noisy, level, labels) - noisy) / column(level.square())

    forward = denoise
