"""A Gaussian for each class, and the best linear estimate of a clean image under it.

Covariances are full over the low-frequency coefficients of the discrete cosine transform (DCT) and isotropic beyond.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sfumato.networks.pixels import Shape, per_row

_SMALLEST_VARIANCE = 0.05**2 * 4  # a twentieth of the pixels' range, squared


def dct_basis(count: int, size: int) -> Tensor:
    """The first ``count`` rows of the orthonormal DCT-II matrix, ``[count, size]``."""
    angle = math.pi / size * torch.arange(count)[:, None] * (torch.arange(size) + 0.5)
    rows = torch.cos(angle) * math.sqrt(2.0 / size)
    return torch.cat([rows[:1] / math.sqrt(2.0), rows[1:]])


class ClassGaussians(nn.Module):
    """Means, and covariances over the ``frequencies`` × ``frequencies`` lowest DCT frequencies of every channel.

    Class k has variance ``variances[k, i]`` along the eigenvector ``axes[k, :, i]`` of its low-frequency coefficients;
    all higher frequencies have variance ``floor[k]``. At the start every class is an isotropic Gaussian of standard
    deviation ``sigma_data`` around 0. There are no parameters, only buffers.
    """

    down: Tensor
    right: Tensor
    means: Tensor
    axes: Tensor
    variances: Tensor
    floor: Tensor

    def __init__(self, shape: Shape, classes: int, *, frequencies: int, sigma_data: float) -> None:
        """Start from isotropic Gaussians."""
        super().__init__()
        channels, height, width = shape
        self.pixels = math.prod(shape)
        high, wide = min(frequencies, height), min(frequencies, width)
        self.coefficients = (channels, high, wide)
        size = math.prod(self.coefficients)
        self.register_buffer("down", dct_basis(high, height), persistent=False)
        self.register_buffer("right", dct_basis(wide, width), persistent=False)
        self.register_buffer("means", torch.zeros(classes, *shape))
        self.register_buffer("axes", torch.eye(size).repeat(classes, 1, 1))
        self.register_buffer("variances", torch.full((classes, size), sigma_data**2))
        self.register_buffer("floor", torch.full((classes,), sigma_data**2))

    def analyse(self, images: Tensor) -> Tensor:
        """Low-frequency DCT coefficients of images, ``[B, coefficients]``."""
        return (self.down.to(images) @ images @ self.right.to(images).T).flatten(1)

    def synthesise(self, coefficients: Tensor) -> Tensor:
        """Images of low-frequency DCT coefficients, the inverse transform."""
        maps = coefficients.view(-1, *self.coefficients)
        return self.down.to(coefficients).T @ maps @ self.right.to(coefficients)

    def estimate(self, noisy: Tensor, sigma: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The expected clean image under the class Gaussian, and its root-mean-square error for each row, ``[B]``."""
        noise, outside, inside = sigma.square()[:, None], self.floor[labels][:, None], self.variances[labels]
        rest, gain = outside / (outside + noise), inside / (inside + noise)
        away = noisy - self.means[labels]
        along = self._rotate(self.analyse(away), labels, back=False) * (gain - rest)
        clean = self.means[labels] + per_row(rest) * away + self.synthesise(self._rotate(along, labels, back=True))
        left = (gain * noise).sum(1) + (self.pixels - inside.shape[1]) * (rest * noise)[:, 0]
        return clean, (left / self.pixels).sqrt()

    def size(self, sigma: Tensor, labels: Tensor) -> Tensor:
        """Standard deviation of a noisy image's pixels around the class mean, ``[B]``."""
        inside, outside = self.variances[labels], self.floor[labels]
        total = inside.sum(1) + (self.pixels - inside.shape[1]) * outside
        return (total / self.pixels + sigma.square()).sqrt()

    def draw(self, labels: Tensor, sigma: float) -> Tensor:
        """Images of the class Gaussians with noise of this level added; with torch's global generator."""
        means, inside, outside = self.means[labels], self.variances[labels], self.floor[labels][:, None]
        white = torch.randn_like(means)
        rest = (outside + sigma**2).sqrt()
        along = torch.randn_like(inside) * (inside + sigma**2).sqrt()
        low = self._rotate(along, labels, back=True) - rest * self.analyse(white)
        return means + per_row(rest) * white + self.synthesise(low)

    def _rotate(self, values: Tensor, labels: Tensor, *, back: bool) -> Tensor:
        """Rotate into the eigenvectors of each row's class, or back, by one product for all classes."""
        axes = self.axes.transpose(1, 2) if back else self.axes
        member = (labels[:, None] == torch.arange(len(axes), device=labels.device)).to(values.dtype)
        return (member[:, :, None] * values[:, None, :]).flatten(1) @ axes.to(values.dtype).flatten(0, 1)

    def fit_covariances(self, moments: Tensor, energy: Tensor, counts: Tensor, *, noise_std: float) -> None:
        """Set the covariances from noisy sums over each class.

        Noise alone has eigenvalues up to an edge. Eigenvalues above the edge are corrected for the shift that noise
        causes (a spiked Wigner matrix); the others share what is left of the trace.

        Args:
            moments: Noisy sums of outer products of coefficients, ``[classes, coefficients, coefficients]``.
            energy: Noisy sums of the squared norm of all higher frequencies, ``[classes]``.
            counts: Class counts to divide by, ``[classes]``.
            noise_std: Standard deviation of the noise on the diagonal; off it the noise is √2 smaller.
        """
        size = moments.shape[1]
        for label in range(len(moments)):
            count = float(counts[label])
            noise = noise_std / math.sqrt(2.0) / count
            found, axes = torch.linalg.eigh(moments[label].double() / count)
            total = max(0.0, float(found.sum()))
            above = found > 2.0 * noise * math.sqrt(size)
            true = (found + (found.square() - 4.0 * noise**2 * size).clamp(min=0.0).sqrt()) / 2.0
            left = max(0.0, total - float(true[above].sum())) / max(1, size - int(above.sum()))
            outside = max(0.0, float(energy[label]) / count) / max(1, self.pixels - size)
            self.axes[label] = axes.to(self.axes)
            self.variances[label] = torch.where(above, true, left).clamp(min=_SMALLEST_VARIANCE).to(self.variances)
            self.floor[label] = max(_SMALLEST_VARIANCE, outside)
