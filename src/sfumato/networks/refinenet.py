"""A RefineNet score network (figure 4 of DPPM): dilated residual blocks, then refinement from coarse to fine.

The label is an input: a fixed embedding of it is one more column of pixels, and every normalisation sees it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.pixels import Shape, one_hot, per_row
from sfumato.networks.score import sigma_features

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
