"""The two halves of a conditional variational autoencoder, without layers that mix a batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.autoencoders import Shape, halvings

SMALLEST_SPREAD, LARGEST_SPREAD = -5.0, 2.0
"""Of a posterior's log-deviation; outside, a step on it would be lost or would blow up."""


def channels_of(shape: Shape, width: int, *, narrowing: bool = False) -> tuple[int, ...]:
    """Channels after each halving of the image: twice, or with ``narrowing`` half as many as before."""
    levels = range(len(halvings(shape)) - 1)
    return tuple(max(1, width >> level) if narrowing else width << level for level in levels)


def one_hot(labels: Tensor, classes: int, like: Tensor) -> Tensor:
    """In the dtype of ``like``, and safe under ``vmap``."""
    return (labels[..., None] == torch.arange(classes, device=labels.device)).to(like.dtype)


class Encoder(nn.Module):
    """``[B, C, H, W]`` and labels → ``[B, 2, code]``: a posterior's mean and log-deviation."""

    def __init__(self, shape: Shape, *, code: int, channels: Sequence[int], labels: int = 0) -> None:
        super().__init__()
        last = halvings(shape)[-1]
        self.code, self.labels = code, labels
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise([shape[0], *channels])
        )  # fmt: skip
        self.last = nn.Linear(channels[-1] * last[0] * last[1] + labels, 2 * code)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = images
        for layer in self.down:
            hidden = F.leaky_relu(layer(hidden), 0.1)
        hidden = hidden.flatten(1)
        if self.labels:
            hidden = torch.cat([hidden, one_hot(labels, self.labels, hidden)], dim=1)
        found: Tensor = self.last(hidden)
        return found.unflatten(1, (2, self.code))


class Decoder(nn.Module):
    """A code, and the label where it is told of ``labels``, → logits of the pixels ``[B, C, H, W]``.

    ``channels`` are those of the matching encoder, from the image inwards. ``own_first`` gives every label a first
    layer of its own; otherwise the label's one-hot stands beside the code.
    """

    def __init__(
        self, shape: Shape, *, code: int, channels: Sequence[int], labels: int = 0, own_first: bool = False
    ) -> None:
        super().__init__()
        sizes = halvings(shape)
        self.code, self.labels, self.own_first = code, labels, own_first
        self.seed = (channels[-1], *sizes[-1])
        flat = self.seed[0] * self.seed[1] * self.seed[2]
        self.first = nn.Linear((code + 1) * labels if own_first else code + labels, flat, bias=not own_first)
        if own_first:
            # A row meets one label's weights only, and they begin as those of a layer that knows no labels.
            nn.init.uniform_(self.first.weight, -((code + 1) ** -0.5), (code + 1) ** -0.5)
        pairs = list(pairwise([shape[0], *channels]))
        self.up = nn.ModuleList(
            # An odd size comes from rounding up, and needs one pixel less on the way back.
            nn.ConvTranspose2d(b, a, 3, stride=2, padding=1, output_padding=((h + 1) % 2, (w + 1) % 2))
            for (a, b), (h, w) in reversed(list(zip(pairs, sizes, strict=False)))
        )

    def forward(self, code: Tensor, labels: Tensor) -> Tensor:
        if self.own_first:
            known = torch.cat([code, torch.ones_like(code[:, :1])], dim=1)
            code = (one_hot(labels, self.labels, code)[:, :, None] * known[:, None, :]).flatten(1)
        elif self.labels:
            code = torch.cat([code, one_hot(labels, self.labels, code)], dim=1)
        hidden = F.relu(self.first(code)).unflatten(1, self.seed)
        for place, layer in enumerate(self.up):
            hidden = layer(F.relu(hidden) if place else hidden)
        return hidden


class Autoencoding(nn.Module):
    """Both halves, for training them together."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """The negative evidence bound at one draw of ``noise``, one number per row."""
        posterior = bounded(self.encoder(images, labels))
        return reconstruction(self.decoder(drawn(posterior, noise), labels), images) + divergence(posterior)


def bounded(posterior: Tensor) -> Tensor:
    """``[B, 2, code]`` with its log-deviation brought into range."""
    mean, spread = posterior.unbind(1)
    return torch.stack([mean, spread.clamp(SMALLEST_SPREAD, LARGEST_SPREAD)], dim=1)


def drawn(posterior: Tensor, noise: Tensor) -> Tensor:
    """A code of each posterior."""
    return posterior[:, 0] + posterior[:, 1].exp() * noise


def reconstruction(logits: Tensor, images: Tensor) -> Tensor:
    """Cross-entropy, summed over the pixels of each row."""
    return F.binary_cross_entropy_with_logits(logits, images, reduction="none").flatten(1).sum(1)


def divergence(posterior: Tensor) -> Tensor:
    """KL to the standard normal, one number per row."""
    mean, spread = posterior.unbind(1)
    return 0.5 * (mean.square() + (2.0 * spread).exp() - 1.0 - 2.0 * spread).sum(1)
