"""Noisy class counts, means and covariances, by two noisy sums over all units; counts as divisors of noisy sums."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.networks.mixture import ClassGaussians
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian


def smallest_count(total: float, classes: int, *, least: float = 1.0) -> float:
    """The count below which a noisy class count is not told apart from noise: a hundredth of an even share."""
    return max(least, total / (100 * classes))


def divisors(counts: Counts) -> Tensor:
    """Noisy class counts, ``[classes]``, bounded from below so that a small count does not amplify the noise."""
    return counts.values.clamp(min=smallest_count(counts.total, len(counts.values)))


_MEANS = "class means"
_COVARIANCES = "class covariances"
_COUNT_SHARE = 0.25  # the entry that counts a unit, relative to the clip norm of its image


def mean_event(noise_multiplier: float) -> SubsampledGaussian:
    """The event of the class means and counts."""
    return SubsampledGaussian(_MEANS, (Block(_MEANS, noise_multiplier),))


def covariance_event(noise_multiplier: float) -> SubsampledGaussian:
    """The event of the class covariances."""
    return SubsampledGaussian(_COVARIANCES, (Block(_COVARIANCES, noise_multiplier),))


def fit_gaussians(
    curator: Curator,
    gaussians: ClassGaussians,
    *,
    mean_clip_rms: float,
    covariance_clip_rms: float,
    covariances: bool,
) -> Counts:
    """Set means and, if wanted, covariances of the classes in place; return the noisy class counts.

    The clip norms, of low-frequency coefficients and of what is left without the class mean, are root mean squares
    over the pixels of an image.
    """
    pixels = math.sqrt(math.prod(curator.shape))
    counts = _fit_means(curator, gaussians, clip_norm=mean_clip_rms * pixels)
    if covariances:
        _fit_covariances(curator, gaussians, divisors(counts), radius=covariance_clip_rms * pixels)
    return counts


def _fit_means(curator: Curator, gaussians: ClassGaussians, *, clip_norm: float) -> Counts:
    count = _COUNT_SHARE * clip_norm

    def coefficients(images: Tensor, labels: Tensor, random: object) -> Tensor:
        """Low-frequency DCT coefficients of each image, and one entry that counts it."""
        flat = _clipped(gaussians.analyse(images), clip_norm)
        return torch.cat([flat, torch.full_like(flat[:, :1], count)], dim=1)

    total = curator.noisy_sum(_MEANS, coefficients, clip_norm=math.hypot(clip_norm, count), by_class=True)
    counts = Counts(total[:, -1] / count)
    means = gaussians.synthesise(total[:, :-1] / divisors(counts)[:, None])
    gaussians.means.copy_(2.0 * means.clamp(0.0, 1.0) - 1.0)
    return counts


def _fit_covariances(curator: Curator, gaussians: ClassGaussians, counts: Tensor, *, radius: float) -> None:
    size = math.prod(gaussians.coefficients)
    upper = torch.triu_indices(size, size, device=curator.device)
    # √2 on the off-diagonal: half-vectorisation keeps the Frobenius norm.
    weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).to(torch.get_default_dtype())

    def products(images: Tensor, labels: Tensor, random: object) -> Tensor:
        """Outer product of an image's low-frequency coefficients, less the mean, and the energy of the others."""
        difference = (2.0 * images - 1.0 - gaussians.means[labels]).flatten(1)
        difference = _clipped(difference, radius).view_as(images)
        low = gaussians.analyse(difference)
        energy = (difference.flatten(1).square().sum(1) - low.square().sum(1)).clamp(min=0.0)
        return torch.cat([low[:, upper[0]] * low[:, upper[1]] * weight, energy[:, None]], dim=1)

    total = curator.noisy_sum(_COVARIANCES, products, clip_norm=radius**2, by_class=True)
    moments = total.new_zeros(len(total), size, size)
    moments[:, upper[0], upper[1]] = total[:, :-1] / weight
    moments = moments + moments.triu(1).transpose(1, 2)
    noise_std = curator.plan.event(_COVARIANCES).noise_multiplier * radius**2
    gaussians.fit_covariances(moments, total[:, -1], counts, noise_std=noise_std)


def _clipped(rows: Tensor, clip_norm: float) -> Tensor:
    return rows * (clip_norm / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
