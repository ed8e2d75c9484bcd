"""Measures of a release besides those of the protocols, in the form of an evaluation's measurements."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sfumato.audit.membership import gan_leaks, out_of_distribution_auroc
from sfumato.data import Images
from sfumato.evaluation.classifiers import score, train_classifier
from sfumato.experiments.spec import EvaluationSpec
from sfumato.methods.parts.divergences import CauchyMMD
from sfumato.methods.privae import PRIVAE
from sfumato.networks.vae import Posterior, Prior, VariationalAutoencoder, log_normal
from sfumato.release import Release

ATTACKED = 1000
PROTOCOL = "protocol"
"""Among the measures of an entry: the protocol's own."""


@dataclass(frozen=True)
class Sampled:
    """A release, images sampled from it, and what they are measured with."""

    release: Release
    synthetic: Images
    train: Images
    test: Images
    evaluation: EvaluationSpec
    device: str


Measure = Callable[[Sampled], list[dict[str, Any]]]


def density(sampled: Sampled) -> list[dict[str, Any]]:
    """AUROC of each class's density on the test set: this class against all others."""
    test = sampled.test
    values = np.nan_to_num(sampled.release.density(test.pixels, device=sampled.device), nan=-np.inf)
    own = {
        name: out_of_distribution_auroc(values[test.labels == place, place], values[test.labels != place, place])
        for place, name in enumerate(test.classes)
        if 0 < (test.labels == place).sum() < len(test.labels)
    }
    found = {f"AUROC of class {name}": value for name, value in own.items()}
    return as_measurements({**found, "AUROC, average": float(np.mean(list(own.values())))})


def membership(sampled: Sampled) -> list[dict[str, Any]]:
    """AUC of GAN-Leaks: the distance to the nearest synthetic image as a membership attack."""
    members, others = sampled.train.pixels[:ATTACKED], sampled.test.pixels[:ATTACKED]
    return as_measurements({"AUC": gan_leaks(sampled.synthetic.pixels, members, others).auc})


def codes(sampled: Sampled) -> list[dict[str, Any]]:
    """PRIVAE's measures: sparsity of the codes of test images, distance from the prior, log-likelihood."""
    model: Any = sampled.release.model
    method: Any = sampled.release.method
    return as_measurements(code_measures(model.to(sampled.device), method, sampled.test.pixels))


def agreement(sampled: Sampled) -> list[dict[str, Any]]:
    """Share of synthetic images in which a classifier trained on real images sees the label they were made for."""
    train, synthetic = sampled.train, sampled.synthetic
    protocol = sampled.evaluation.chosen_protocol()
    spec = next(spec for spec in protocol.classifiers if spec.name == protocol.agreement_classifier)
    classes = len(train.classes)
    classifier = train_classifier(spec, train.pixels, train.labels, classes=classes, seed=0, device=sampled.device)
    found = score(classifier, synthetic.pixels, synthetic.labels, classes=classes)
    return as_measurements({"label_agreement": found.overall}, classifier=spec.name)


def as_measurements(values: dict[str, float], *, classifier: str | None = None) -> list[dict[str, Any]]:
    """Numbers in the form of an evaluation's measurements."""
    return [
        {"row": "synthetic", "metric": name, "classifier": classifier, "features": None, "mean": value, "std": None}
        for name, value in values.items()
    ]


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


MEASURES: dict[str, Measure] = {
    "agreement": agreement,
    "codes": codes,
    "density": density,
    "membership": membership,
}
