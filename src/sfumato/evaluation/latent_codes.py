"""Measures on latent codes and on log-densities: sparsity, distance from the prior, likelihood, and separation.

Codes of real images are private, so results computed from them are NOT PRIVATE.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.methods.parts.divergences import CauchyMMD
from sfumato.methods.privae import PRIVAE
from sfumato.networks.vae import Posterior, Prior, VariationalAutoencoder, log_normal


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


def out_of_distribution_auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    """Probability that an image of the distribution has a higher log-density than another one; ties count one half.

    ``inside`` and ``outside`` are log-densities, one number per image. Infinite ones are
    ordered like numbers; NaN cannot be ordered and is refused.
    """
    from scipy.stats import rankdata

    inside, outside = _flat(inside, "inside"), _flat(outside, "outside")
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    wins = ranks.sum() - len(inside) * (len(inside) + 1) / 2
    return float(wins / (len(inside) * len(outside)))


def _flat(values: np.ndarray, name: str) -> np.ndarray:
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(values):
        raise ValueError(f"{name} must hold at least one log-density")
    if np.isnan(values).any():
        raise ValueError(f"{name} holds NaN, which cannot be ordered; check the density that produced it")
    return values
