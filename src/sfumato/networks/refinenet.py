"""A RefineNet score network (figure 4 of DPPM): dilated residual blocks, then refinement from coarse to fine.

The label is an input: a fixed embedding of it is one more column of pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.pixels import Shape, per_row
from sfumato.networks.score import sigma_features

_SIGNAL = 16  # numbers that sigma_features gives


class ConditionalNorm(nn.Module):
    """Every channel of every image by its own mean and deviation, then scaled and shifted by the noise level.

    The means that normalisation takes out come back, normalised over the channels: a picture's brightness matters.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(channels, channels, affine=False)
        self.level = nn.Linear(_SIGNAL, 3 * channels)
        nn.init.normal_(self.level.weight, std=0.02)

    def forward(self, hidden: Tensor, signal: Tensor) -> Tensor:
        scale, shift, share = self.level(signal)[:, :, None, None].chunk(3, dim=1)
        means = hidden.mean(dim=(2, 3), keepdim=True)
        means = means - means.mean(dim=1, keepdim=True)
        means = means * (means.square().mean(dim=1, keepdim=True) + 1e-5).rsqrt()
        output: Tensor = self.norm(hidden) * (1.0 + scale) + shift + means * (1.0 + share)
        return output


class ConditionalBlock(nn.Module):
    """Two convolutions around a skip; ``dilation`` widens their view, ``halve`` halves the picture."""

    def __init__(self, before: int, after: int, *, dilation: int = 1, halve: bool = False) -> None:
        super().__init__()
        self.halve = halve
        self.first_norm = ConditionalNorm(before)
        self.first = nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation)
        self.second_norm = ConditionalNorm(after)
        self.second = nn.Conv2d(after, after, 3, padding=dilation, dilation=dilation)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, hidden: Tensor, signal: Tensor) -> Tensor:
        inner = self.first(F.elu(self.first_norm(hidden, signal)))
        inner = self.second(F.elu(self.second_norm(inner, signal)))
        output: Tensor = self.skip(hidden) + inner
        return F.avg_pool2d(output, 2, ceil_mode=True) if self.halve else output


class Stage(nn.Module):
    """Two residual blocks of one width and dilation."""

    def __init__(self, before: int, after: int, *, dilation: int, halve: bool) -> None:
        super().__init__()
        self.first = ConditionalBlock(before, after, dilation=dilation, halve=halve)
        self.second = ConditionalBlock(after, after, dilation=dilation)

    def forward(self, hidden: Tensor, signal: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(hidden, signal), signal)
        return output


class RefineBlock(nn.Module):
    """Adapts its inputs, adds them at the size of the first, gathers background by chained pooling."""

    def __init__(self, befores: tuple[int, ...], after: int) -> None:
        super().__init__()
        self.adapt = nn.ModuleList(ConditionalBlock(before, before) for before in befores)
        self.fuse = nn.ModuleList(nn.Conv2d(before, after, 3, padding=1) for before in befores)
        self.pool = nn.ModuleList(nn.Conv2d(after, after, 3, padding=1) for _ in range(2))
        self.output = ConditionalBlock(after, after)

    def forward(self, inputs: tuple[Tensor, ...], signal: Tensor) -> Tensor:
        parts = [fuse(adapt(x, signal)) for adapt, fuse, x in zip(self.adapt, self.fuse, inputs, strict=True)]
        size = parts[0].shape[-2:]
        hidden = torch.stack([F.interpolate(part, size=size, mode="bilinear") for part in parts]).sum(0)
        path = F.elu(hidden)
        for convolution in self.pool:
            path = convolution(F.avg_pool2d(path, 5, stride=1, padding=2))
            hidden = hidden + path
        output: Tensor = self.output(hidden, signal)
        return output


class RefineNet(nn.Module):
    """``width`` is 128 in the paper. From 256 pixels on there is one more stage, as in its figure 4 (b)."""

    codes: Tensor

    def __init__(self, shape: Shape, classes: int, *, width: int = 128) -> None:
        super().__init__()
        self.shape = shape
        channels, height, across = shape
        deep = max(height, across) >= 256
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        # Width and dilation of each stage; the second stage halves the picture.
        plan = [(width, 1), (2 * width, 1), (2 * width, 2), (2 * width, 4)] + [(4 * width, 8)] * deep
        self.stages = nn.ModuleList()
        before = width
        for index, (after, dilation) in enumerate(plan):
            self.stages.append(Stage(before, after, dilation=dilation, halve=index == 1))
            before = after
        widths = [after for after, _ in plan]
        outputs = [max(width, after // (1 if index > 1 else 2)) for index, after in enumerate(widths)]
        self.refine = nn.ModuleList([RefineBlock((widths[-1],), outputs[-1])])
        for index in range(len(widths) - 2, -1, -1):
            self.refine.append(RefineBlock((widths[index], outputs[index + 1]), outputs[index]))
        self.leave_norm = ConditionalNorm(width)
        self.leave = nn.Conv2d(width, channels, 3, padding=1)
        # The embedding matrix of the paper is fixed; a column of ±1 tells any two labels apart.
        self.register_buffer("codes", torch.randint(0, 2, (classes, height)).to(torch.get_default_dtype()) * 2.0 - 1.0)

    def embed(self, images: Tensor, labels: Tensor) -> Tensor:
        """``u`` of the paper: the images with their label as a last column."""
        codes = self.codes[labels][:, None, :, None].expand(-1, images.shape[1], -1, -1)
        return torch.cat([images, codes.to(images.dtype)], dim=3)

    def score(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The score of the picture's own pixels. Scaled by the level, the network's output has about unit size."""
        signal = sigma_features(sigma)
        hidden, kept = self.enter(self.embed(noisy, labels)), []
        for stage in self.stages:
            hidden = stage(hidden, signal)
            kept.append(hidden)
        hidden = self.refine[0]((kept[-1],), signal)
        for block, beside in zip(self.refine[1:], kept[-2::-1], strict=True):
            hidden = block((beside, hidden), signal)
        output = self.leave(F.elu(self.leave_norm(hidden, signal)))
        return output[..., :-1].to(noisy.dtype) / per_row(sigma)

    def start(self, labels: Tensor, sigma: float) -> Tensor:
        """Noise of this level, from torch's global generator."""
        weight = self.leave.weight
        return sigma * torch.randn(len(labels), *self.shape, device=weight.device, dtype=weight.dtype)

    def denoise(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> Tensor:
        """The clean image, by Tweedie's formula."""
        return noisy + per_row(sigma.square()) * self.score(noisy, sigma, labels)

    forward = score
