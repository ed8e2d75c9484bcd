"""A Gaussian for each class, and the best linear estimate of a clean image under it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]


def column(values: Tensor) -> Tensor:
    """One number per row, shaped to broadcast with images."""
    return values.view(-1, 1, 1, 1)


def cosines(count: int, size: int) -> Tensor:
    """``[count, size]``: the first waves of the discrete cosine transform, orthonormal."""
    angle = math.pi / size * torch.arange(count)[:, None] * (torch.arange(size) + 0.5)
    waves = torch.cos(angle) * math.sqrt(2.0 / size)
    return torch.cat([waves[:1] / math.sqrt(2.0), waves[1:]])


class ClassGaussians(nn.Module):
    """``means``, and covariances that are full over the ``frequencies`` × ``frequencies`` slowest waves of a channel.

    Within the waves, class k has variance ``variances[k, i]`` along ``axes[k, :, i]``; all faster ones have
    ``floor[k]``. At the start every class is a ball of deviation ``spread`` around nothing. No parameters.
    """

    down: Tensor
    right: Tensor
    means: Tensor
    axes: Tensor
    variances: Tensor
    floor: Tensor

    def __init__(self, shape: Shape, classes: int, *, frequencies: int, spread: float) -> None:
        super().__init__()
        channels, height, width = shape
        self.pixels = math.prod(shape)
        high, wide = min(frequencies, height), min(frequencies, width)
        self.waves = (channels, high, wide)
        size = math.prod(self.waves)
        self.register_buffer("down", cosines(high, height), persistent=False)
        self.register_buffer("right", cosines(wide, width), persistent=False)
        self.register_buffer("means", torch.zeros(classes, *shape))
        self.register_buffer("axes", torch.eye(size).repeat(classes, 1, 1))
        self.register_buffer("variances", torch.full((classes, size), spread**2))
        self.register_buffer("floor", torch.full((classes,), spread**2))

    def analyse(self, images: Tensor) -> Tensor:
        """``[rows, *shape] → [rows, waves]``."""
        return (self.down.to(images) @ images @ self.right.to(images).T).flatten(1)

    def synthesise(self, waves: Tensor) -> Tensor:
        """The way back."""
        return self.down.to(waves).T @ waves.view(-1, *self.waves) @ self.right.to(waves)

    def estimate(self, noisy: Tensor, level: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The clean image that is to be expected under the Gaussian, and how far off it is, a number for each row."""
        noise, outside, inside = level.square()[:, None], self.floor[labels][:, None], self.variances[labels]
        rest, gain = outside / (outside + noise), inside / (inside + noise)
        away = noisy - self.means[labels]
        along = self._turn(self.analyse(away), labels, back=False) * (gain - rest)
        clean = self.means[labels] + column(rest) * away + self.synthesise(self._turn(along, labels, back=True))
        left = (gain * noise).sum(1) + (self.pixels - inside.shape[1]) * (rest * noise)[:, 0]
        return clean, (left / self.pixels).sqrt()

    def size(self, level: Tensor, labels: Tensor) -> Tensor:
        """The deviation of a noisy image's pixels around the mean, a number for each row."""
        inside, outside = self.variances[labels], self.floor[labels]
        total = inside.sum(1) + (self.pixels - inside.shape[1]) * outside
        return (total / self.pixels + level.square()).sqrt()

    def draw(self, labels: Tensor, level: float) -> Tensor:
        """Images of the Gaussians under noise of this level; from torch's global generator."""
        means, inside, outside = self.means[labels], self.variances[labels], self.floor[labels][:, None]
        white = torch.randn_like(means)
        rest = (outside + level**2).sqrt()
        along = torch.randn_like(inside) * (inside + level**2).sqrt()
        waves = self._turn(along, labels, back=True) - rest * self.analyse(white)
        return means + column(rest) * white + self.synthesise(waves)

    def _turn(self, waves: Tensor, labels: Tensor, *, back: bool) -> Tensor:
        """Into the own axes of each row's class, or back: one product for all classes, a row in its class's block."""
        axes = self.axes.transpose(1, 2) if back else self.axes
        member = (labels[:, None] == torch.arange(len(axes), device=labels.device)).to(waves.dtype)
        return (member[:, :, None] * waves[:, None, :]).flatten(1) @ axes.to(waves.dtype).flatten(0, 1)

    def learn(self, moments: Tensor, energy: Tensor, counts: Tensor, *, deviation: float) -> None:
        """Covariances from noisy sums of outer products ``[classes, waves, waves]`` and of the energy of faster waves.

        ``deviation`` is that of the noise on the diagonal; off it the noise is √2 smaller. Noise alone has eigenvalues
        up to an edge; what stands out of it is brought back by as much as noise pushes it out (a spiked Wigner matrix),
        and what does not shares what is left of the trace.
        """
        size = moments.shape[1]
        for label in range(len(moments)):
            count = float(counts[label])
            noise = deviation / math.sqrt(2.0) / count
            found, axes = torch.linalg.eigh(moments[label].double() / count)
            total = max(0.0, float(found.sum()))
            stands = found > 2.0 * noise * math.sqrt(size)
            # The edge says nothing where there is no noise.
            true = (found + (found.square() - 4.0 * noise**2 * size).clamp(min=0.0).sqrt()) / 2.0
            left = max(0.0, total - float(true[stands].sum())) / max(1, size - int(stands.sum()))
            outside = max(0.0, float(energy[label]) / count) / max(1, self.pixels - size)
            self.axes[label] = axes.to(self.axes)
            # No direction is taken for known to better than a twentieth of the pixels' range.
            self.variances[label] = torch.where(stands, true, left).clamp(min=_LEAST).to(self.variances)
            self.floor[label] = max(_LEAST, outside)


_LEAST = 0.05**2 * 4
