"""Measures on latent codes: sparsity, distance from the prior, and the likelihood of images.

Codes of real images are private, so results computed from them are NOT PRIVATE.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.methods.parts.divergences import CAUCHY_SCALES, CauchyMMD
from sfumato.methods.privae import PRIVAE
from sfumato.networks.dense import Posterior, VariationalAutoencoder
from sfumato.networks.priors import Prior, log_normal


def code_measures(model: VariationalAutoencoder, method: PRIVAE, pixels: np.ndarray) -> dict[str, float]:
    """The measures of PRIVAE's figure 1 on the first 2,000 images; labels are not used."""
    weight = model.decode_last.weight
    images = torch.from_numpy(np.asarray(pixels[:2000])).to(weight) / 255.0
    labels = torch.zeros(len(images), dtype=torch.int64, device=weight.device)
    with torch.no_grad():
        posterior = model.encode(images, labels)
    noise = torch.randn_like(posterior.mean)
    return {
        "sparsity": hoyer_sparsity(posterior.mean),
        "sparsity of draws": hoyer_sparsity(posterior.draw(noise)),
        "log-likelihood": log_likelihood(model, method, images[:500], labels[:500], draws=32),
        "MMD": prior_distance(posterior, noise, method.code_prior()),
    }


@torch.no_grad()
def prior_distance(posterior: Posterior, noise: Tensor, prior: Prior) -> float:
    """Squared MMD between drawn codes and the prior, by the dimension-wise Cauchy kernel with k(x, x) = 1."""
    exact = CauchyMMD(prior, frequencies=8)
    return float(exact.between(exact.embed(posterior, noise)))


@torch.no_grad()
def log_likelihood(
    model: VariationalAutoencoder, method: PRIVAE, images: Tensor, labels: Tensor, *, draws: int = 64
) -> float:
    """The importance-weighted bound on log p(x), mean over images, in nats."""
    prior, posterior = method.code_prior(), model.encode(images, labels)
    weights = []
    for _ in range(draws):
        codes = posterior.draw(torch.randn_like(posterior.mean))
        logits, targets = model.decode(codes, labels).flatten(1), images.flatten(1)
        if method.likelihood == "bernoulli":
            given = -F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        else:
            given = log_normal(targets, torch.sigmoid(logits), method.pixel_std).sum(1)
        weights.append(given + prior.log_density(codes) - posterior.log_density(codes))
    return float((torch.logsumexp(torch.stack(weights), 0) - math.log(draws)).mean())


def hoyer_sparsity(codes: Tensor) -> float:
    """Mean Hoyer measure of codes ``[N, d]``, each dimension divided by its deviation over the set (PRIVAE, eq. 17).

    0 is fully dense, 1 has one dimension only. A dimension that never moves says nothing and counts as zero; a code
    that is zero everywhere (a collapsed posterior) has no direction and counts as dense, so that nothing is NaN.
    """
    if codes.ndim != 2 or len(codes) < 2 or codes.shape[1] < 2:
        raise ValueError(f"codes must be [at least 2 codes, at least 2 dimensions], not {tuple(codes.shape)}")
    codes = codes.double()
    deviation = codes.std(dim=0, unbiased=False)
    scaled = torch.where(deviation > 0, codes / deviation.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
    ones, twos = scaled.abs().sum(dim=1), scaled.norm(dim=1)
    root = codes.shape[1] ** 0.5
    ratio = torch.where(twos > 0, ones / twos.clamp(min=torch.finfo(torch.float64).tiny), root)
    return float(((root - ratio) / (root - 1)).mean())


def maximum_mean_discrepancy(
    first: Tensor, second: Tensor, *, scales: tuple[float, ...] = CAUCHY_SCALES, microbatch_size: int = 512
) -> float:
    """Unbiased squared MMD with the kernel Σ_d Σ_s s / (s + (x_d − y_d)²), dimension by dimension."""
    if first.ndim != 2 or second.ndim != 2 or first.shape[1] != second.shape[1]:
        raise ValueError(f"both sets must be [codes, the same d], not {tuple(first.shape)} and {tuple(second.shape)}")
    if min(len(first), len(second)) < 2:
        raise ValueError("the unbiased MMD needs at least two codes on each side")
    first, second = first.double(), second.double()
    itself = first.shape[1] * len(scales)
    within = [
        (_kernel_sum(values, values, scales, microbatch_size) - itself * len(values))
        / (len(values) * (len(values) - 1))
        for values in (first, second)
    ]
    between = _kernel_sum(first, second, scales, microbatch_size) / (len(first) * len(second))
    return within[0] + within[1] - 2 * between


def _kernel_sum(first: Tensor, second: Tensor, scales: tuple[float, ...], microbatch_size: int) -> float:
    total = 0.0
    for dimension in range(first.shape[1]):
        column = second[:, dimension]
        for part in first[:, dimension].split(microbatch_size):
            squares = (part[:, None] - column).square()
            total += float(sum((scale / (scale + squares)).sum() for scale in scales))
    return total
