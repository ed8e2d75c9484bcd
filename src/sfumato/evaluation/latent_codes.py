"""What a variational autoencoder's codes are like: sparse, near the prior, and how likely they make an image.

Computed from real images, so what comes out is NOT private.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.methods.parts.divergences import CauchyMMD
from sfumato.methods.privae import PRIVAE
from sfumato.networks.dense import Posterior, VariationalAutoencoder
from sfumato.networks.priors import Prior, log_normal


def code_measures(model: VariationalAutoencoder, method: PRIVAE, pixels: np.ndarray) -> dict[str, float]:
    """What PRIVAE's figure 1 shows, of the first 2,000 images; labels have no part in it."""
    weight = model.decode_last.weight
    images = torch.from_numpy(np.asarray(pixels[:2000])).to(weight) / 255.0
    labels = torch.zeros(len(images), dtype=torch.int64, device=weight.device)
    with torch.no_grad():
        posterior = model.encode(images, labels)
    noise = torch.randn_like(posterior.mean)
    return {
        "sparsity": hoyer(posterior.mean),
        "sparsity of draws": hoyer(posterior.draw(noise)),
        "log-likelihood": log_likelihood(model, method, images[:500], labels[:500], draws=32),
        "MMD": prior_distance(posterior, noise, method.code_prior()),
    }


def hoyer(codes: Tensor) -> float:
    """The mean Hoyer sparsity of ``[n, d]`` codes, each dimension divided by its deviation over the data: 0 to 1."""
    scaled = codes.double() / codes.double().std(0).clamp(min=1e-12)
    root = math.sqrt(codes.shape[1])
    ratio = scaled.abs().sum(1) / scaled.norm(dim=1).clamp(min=1e-12)
    return float(((root - ratio) / (root - 1)).mean())


@torch.no_grad()
def prior_distance(posterior: Posterior, noise: Tensor, prior: Prior) -> float:
    """Squared MMD between drawn codes and the prior, by the dimension-wise Cauchy kernel with k(x, x) = 1."""
    exact = CauchyMMD(prior, waves=8)
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
