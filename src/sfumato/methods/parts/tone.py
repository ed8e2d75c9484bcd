"""The tone of drawn images: their grey levels are mapped to a noisy histogram of the private images' grey levels.

One noisy sum over all units. The map keeps the order of the levels; it is computed from samples and is released.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sfumato.networks.pixels import valid_pixels
from sfumato.privacy import Block, Curator, SubsampledGaussian

_EVENT = "tone"
_BINS = 32
_KNOTS = 512
_FLAT = 0.3  # a share of the darkest or the lightest bin above which its pixels are drawn quite dark, or quite light
_BACKGROUND = 2.0 / 3.0  # a share of the lowest or the highest levels above which they are the background of strokes
_BACKGROUND_BINS = 4


def tone_query(noise_multiplier: float = 1.0) -> SubsampledGaussian:
    """The histogram of grey levels."""
    return SubsampledGaussian(_EVENT, (Block(_EVENT, noise_multiplier),))


class Tone(nn.Module):
    """A map of levels for each channel: level ``source[c, i]`` becomes ``target[c, i]``; the identity at the start."""

    source: Tensor
    target: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("source", "target"):
            self.register_buffer(name, torch.linspace(0.0, 1.0, _KNOTS).repeat(channels, 1))

    def forward(self, images: Tensor) -> Tensor:
        found = []
        for channel, (source, target) in enumerate(zip(self.source, self.target, strict=True)):
            levels = images[:, channel].contiguous()
            after = torch.searchsorted(source.to(levels), levels).clamp(1, _KNOTS - 1)
            first, last = source.to(levels)[after - 1], source.to(levels)[after]
            part = ((levels - first) / (last - first).clamp(min=1e-9)).clamp(0.0, 1.0)
            ends = target.to(levels)
            found.append(ends[after - 1] + part * (ends[after] - ends[after - 1]))
        return torch.stack(found, dim=1)


def ask_tone(curator: Curator) -> Tensor:
    """The noisy histogram of grey levels, ``[channels, bins]``, not negative.

    A unit's histogram over its channels is divided by its norm, so that a unit moves the sum by at most 1.
    """
    edges = torch.arange(_BINS, device=curator.device)

    def histogram(images: Tensor, labels: Tensor, random: object) -> Tensor:
        bins = (valid_pixels(images).flatten(2) * _BINS).long().clamp(max=_BINS - 1)
        found = torch.stack([(bins == edge).to(images.dtype).mean(2) for edge in edges], dim=2)
        return found / found.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-12)

    return curator.noisy_sum(_EVENT, histogram, clip_norm=1.0).double().clamp(min=0.0)


def background_of(histogram: Tensor) -> float:
    """0 or 1 where strokes lie on a background that is so dark or so light in all channels, and else 0.5."""
    shares = histogram / histogram.sum(1, keepdim=True).clamp(min=1e-12)
    for level, share in ((0.0, shares[:, :_BACKGROUND_BINS]), (1.0, shares[:, -_BACKGROUND_BINS:])):
        if bool((share.sum(1) > _BACKGROUND).all()):
            return level
    return 0.5


def fit_tone(tone: Tone, histogram: Tensor, samples: Tensor) -> None:
    """Map the levels of ``samples``, which are public, to the histogram."""
    places = torch.linspace(0.0, 1.0, _KNOTS, dtype=torch.float64, device=histogram.device)
    for channel, counts in enumerate(histogram):
        if float(counts.sum()) <= 0:
            continue
        shares = counts / counts.sum()
        reached = torch.cat([shares.new_zeros(1), shares.cumsum(0)])
        upper = torch.searchsorted(reached, places).clamp(1, _BINS)
        part = (places - reached[upper - 1]) / (reached[upper] - reached[upper - 1]).clamp(min=1e-12)
        levels = (upper - 1 + part.clamp(0.0, 1.0)) / _BINS
        if float(shares[0]) > _FLAT:
            levels = torch.where(places < shares[0], 0.0, levels)
        if float(shares[-1]) > _FLAT:
            levels = torch.where(places > 1.0 - shares[-1], 1.0, levels)
        drawn = samples[:, channel].flatten().double().sort().values
        rows = (places * (len(drawn) - 1)).long()
        tone.source[channel], tone.target[channel] = drawn[rows].to(tone.source), levels.to(tone.target)
