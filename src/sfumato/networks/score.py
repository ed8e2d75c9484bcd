"""A compact noise-conditional U-Net that estimates the clean image behind a noisy one, and with it the score."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.mixture import ClassGaussians
from sfumato.networks.pixels import Shape, one_hot, per_row

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
        output, linear, size = self.residual(noisy, sigma, labels)
        return linear + size * output.to(noisy.dtype)

    def start(self, labels: Tensor, sigma: float) -> Tensor:
        """Noisy images of this level, large enough to hide all but the Gaussians; with torch's global generator."""
        return self.gaussians.draw(labels, sigma)

    def score(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the log-density of noisy images."""
        return (self.denoise(noisy, sigma, labels) - noisy) / per_row(sigma.square())

    forward = denoise


_LEVEL = 16  # numbers that sigma_features gives


class ConditionalNorm(nn.Module):
    """Every channel of every image by its own mean and deviation, then scaled and shifted by noise level and label.

    The means that normalisation takes out come back, normalised over the channels: a picture's brightness matters.
    """

    def __init__(self, channels: int, signal: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(channels, channels, affine=False)
        self.signal = nn.Linear(signal, 3 * channels)
        nn.init.normal_(self.signal.weight[:, :_LEVEL], std=0.02)
        nn.init.normal_(self.signal.weight[:, _LEVEL:], std=0.2)

    def forward(self, hidden: Tensor, signal: Tensor) -> Tensor:
        scale, shift, share = self.signal(signal)[:, :, None, None].chunk(3, dim=1)
        means = hidden.mean(dim=(2, 3), keepdim=True)
        means = means - means.mean(dim=1, keepdim=True)
        means = means * (means.square().mean(dim=1, keepdim=True) + 1e-5).rsqrt()
        output: Tensor = self.norm(hidden) * (1.0 + scale) + shift + means * (1.0 + share)
        return output


class ConditionalBlock(nn.Module):
    """Two convolutions around a skip; ``dilation`` widens their view, ``halve`` halves the picture."""

    def __init__(self, before: int, after: int, signal: int, *, dilation: int = 1, halve: bool = False) -> None:
        super().__init__()
        self.halve = halve
        self.first_norm = ConditionalNorm(before, signal)
        self.first = nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation)
        self.second_norm = ConditionalNorm(after, signal)
        self.second = nn.Conv2d(after, after, 3, padding=dilation, dilation=dilation)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, hidden: Tensor, signal: Tensor) -> Tensor:
        inner = self.first(F.elu(self.first_norm(hidden, signal)))
        inner = self.second(F.elu(self.second_norm(inner, signal)))
        output: Tensor = self.skip(hidden) + inner
        return F.avg_pool2d(output, 2, ceil_mode=True) if self.halve else output


class Stage(nn.Module):
    """Two residual blocks of one width and dilation."""

    def __init__(self, before: int, after: int, signal: int, *, dilation: int, halve: bool) -> None:
        super().__init__()
        self.first = ConditionalBlock(before, after, signal, dilation=dilation, halve=halve)
        self.second = ConditionalBlock(after, after, signal, dilation=dilation)

    def forward(self, hidden: Tensor, signal: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(hidden, signal), signal)
        return output


class RefineBlock(nn.Module):
    """Adapts its inputs, adds them at the size of the first, gathers background by chained pooling."""

    def __init__(self, befores: tuple[int, ...], after: int, signal: int) -> None:
        super().__init__()
        self.adapt = nn.ModuleList(ConditionalBlock(before, before, signal) for before in befores)
        self.fuse = nn.ModuleList(nn.Conv2d(before, after, 3, padding=1) for before in befores)
        self.pool = nn.ModuleList(nn.Conv2d(after, after, 3, padding=1) for _ in range(2))
        self.output = ConditionalBlock(after, after, signal)

    def forward(self, inputs: tuple[Tensor, ...], signal: Tensor) -> Tensor:
        parts = [fuse(adapt(x, signal)) for adapt, fuse, x in zip(self.adapt, self.fuse, inputs, strict=True)]
        size = parts[0].shape[-2:]
        hidden = torch.stack([F.interpolate(part, size=size, mode="bilinear") for part in parts]).sum(0)
        path = F.elu(hidden)
        for convolution in self.pool:
            # The mean of 5×5 as that of rows and of columns, which is faster.
            path = F.avg_pool2d(path, (5, 1), stride=1, padding=(2, 0))
            path = convolution(F.avg_pool2d(path, (1, 5), stride=1, padding=(0, 2)))
            hidden = hidden + path
        output: Tensor = self.output(hidden, signal)
        return output


class RefineNet(nn.Module):
    """``width`` is 128 in the paper. From 256 pixels on there is one more stage, as in its figure 4 (b).

    The network's input and output have about unit size at every noise level (the preconditioning of Karras et al.,
    2022), for images in −1..1 of standard deviation ``sigma_data``.
    """

    codes: Tensor

    def __init__(self, shape: Shape, classes: int, *, width: int = 128, sigma_data: float = 0.6) -> None:
        super().__init__()
        self.shape, self.classes, self.sigma_data = shape, classes, sigma_data
        channels, height, across = shape
        signal, deep = _LEVEL + classes, max(height, across) >= 256
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        # Width and dilation of each stage; the second stage halves the picture.
        plan = [(width, 1), (2 * width, 1), (2 * width, 2), (2 * width, 4)] + [(4 * width, 8)] * deep
        self.stages = nn.ModuleList()
        before = width
        for index, (after, dilation) in enumerate(plan):
            self.stages.append(Stage(before, after, signal, dilation=dilation, halve=index == 1))
            before = after
        widths = [after for after, _ in plan]
        outputs = [max(width, after // (1 if index > 1 else 2)) for index, after in enumerate(widths)]
        self.refine = nn.ModuleList([RefineBlock((widths[-1],), outputs[-1], signal)])
        for index in range(len(widths) - 2, -1, -1):
            self.refine.append(RefineBlock((widths[index], outputs[index + 1]), outputs[index], signal))
        self.leave_norm = ConditionalNorm(width, signal)
        self.leave = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.normal_(self.leave.weight, std=0.1 / math.sqrt(9 * width))
        # The embedding matrix of the paper is fixed; a column of ±1 tells any two labels apart.
        self.register_buffer("codes", torch.randint(0, 2, (classes, height)).to(torch.get_default_dtype()) * 2.0 - 1.0)

    def embed(self, images: Tensor, labels: Tensor) -> Tensor:
        """``u`` of the paper: the images with their label as a last column."""
        codes = self.codes[labels][:, None, :, None].expand(-1, images.shape[1], -1, -1)
        return torch.cat([images, codes.to(images.dtype)], dim=3)

    def net(self, images: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The network without preconditioning, for the picture's own pixels."""
        signal = torch.cat([sigma_features(sigma), one_hot(labels, self.classes, sigma)], dim=1)
        hidden, kept = self.enter(self.embed(images, labels)), []
        for stage in self.stages:
            hidden = stage(hidden, signal)
            kept.append(hidden)
        hidden = self.refine[0]((kept[-1],), signal)
        for block, beside in zip(self.refine[1:], kept[-2::-1], strict=True):
            hidden = block((beside, hidden), signal)
        output: Tensor = self.leave(F.elu(self.leave_norm(hidden, signal)))
        return output[..., :-1].to(images.dtype)

    def score(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the log-density of noisy images."""
        total = per_row(torch.sqrt(sigma.square() + self.sigma_data**2))
        return self.net(noisy / total, sigma, labels) * self.sigma_data / (per_row(sigma) * total) - noisy / total**2

    def start(self, labels: Tensor, sigma: float) -> Tensor:
        """Noise of this level, from torch's global generator."""
        weight = self.leave.weight
        return sigma * torch.randn(len(labels), *self.shape, device=weight.device, dtype=weight.dtype)

    def denoise(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The clean image, by Tweedie's formula."""
        return noisy + per_row(sigma.square()) * self.score(noisy, sigma, labels)

    forward = score


Field = Callable[[Tensor, Tensor], Tensor]
"""``field(images, sigma)``: scores, or denoised images, of noisy images with one noise level for each row."""

Momentum = Literal["gaussian", "rayleigh", "uniform"]


def karras_sigmas(count: int, *, sigma_max: float, sigma_min: float, rho: float = 7.0) -> list[float]:
    """Noise levels from ``sigma_max`` down to ``sigma_min``, evenly spaced in their power 1/ρ (Karras et al., 2022).

    ρ = 7 spends more levels where the image is decided. ρ = −2 is DPPM's step decay λ·(M/m)², exactly so for
    ``sigma_max`` = M²·``sigma_min``.

    >>> [round(sigma, 2) for sigma in karras_sigmas(3, sigma_max=10.0, sigma_min=0.1, rho=7.0)]
    [10.0, 1.45, 0.1]
    """
    if count == 1:
        return [sigma_max]
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return [float((high + m / (count - 1) * (low - high)) ** rho) for m in range(count)]


def momenta(distribution: Momentum, like: Tensor) -> Tensor:
    """Random momenta of mean 0 and variance 1 in the shape of ``like``. A Rayleigh draw gets a random sign."""
    if distribution == "gaussian":
        return torch.randn_like(like)
    if distribution == "uniform":
        return (2.0 * torch.rand_like(like) - 1.0) * math.sqrt(3.0)
    length = torch.hypot(torch.randn_like(like), torch.randn_like(like)) / math.sqrt(2.0)
    return length * (2.0 * torch.randint_like(like, 2) - 1.0)


def hamiltonian(
    score: Field,
    images: Tensor,
    sigmas: list[float],
    *,
    leapfrog_steps: int = 3,
    step_size: float = 0.5,
    momentum_distribution: Momentum = "gaussian",
    metropolis: bool = True,
) -> Tensor:
    """Annealed Hamiltonian Monte Carlo: at every noise level draw momenta and take leapfrog steps.

    With ``step_size · leapfrog_steps`` ≈ π/2 the momenta replace the noise of the previous level. A score network has
    no energy; the Metropolis rule needs only an energy difference, the line integral of the score along the path,
    which the trapezoidal rule gives. The kinetic energy is p²/2 for every distribution of p, as in the paper, so the
    rule is exact for Gaussian momenta only.

    Args:
        score: The score at a noise level.
        images: Noisy images of the first level.
        sigmas: The noise levels, from large to small.
        leapfrog_steps: Leapfrog steps at every level.
        step_size: The step size in units of the noise level.
        momentum_distribution: The distribution of the momenta.
        metropolis: Accept or reject every trajectory by the Metropolis rule.
    """
    for level in sigmas:
        sigma, size = images.new_full((len(images),), level), step_size * level
        position, momentum = images, momenta(momentum_distribution, images)
        kinetic = momentum.square().flatten(1).sum(1) / 2
        force, work = score(position, sigma), images.new_zeros(len(images))
        for _ in range(leapfrog_steps):
            half = momentum + size / 2 * force
            position = position + size * half
            next_force = score(position, sigma)
            momentum = half + size / 2 * next_force
            work = work + ((force + next_force) / 2 * (size * half)).flatten(1).sum(1)
            force = next_force
        if metropolis:
            gain = work + kinetic - momentum.square().flatten(1).sum(1) / 2
            accepted = torch.rand_like(gain).log() < gain
            position = torch.where(accepted.view(-1, 1, 1, 1), position, images)
        images = position
    return images
