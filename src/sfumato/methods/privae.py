"""PRIVAE: a variational autoencoder with a divergence between the aggregate posterior and a prior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.base import Method, check_choices, expected
from sfumato.methods.parts.divergences import CAUCHY_SCALES, CauchyMMD, Divergence, ForwardKL, gradient_of
from sfumato.networks.pixels import Shape
from sfumato.networks.vae import (
    Corners,
    Posterior,
    Prior,
    SparseMixture,
    StandardNormal,
    VariationalAutoencoder,
    log_normal,
)
from sfumato.privacy import Block, Counts, Curator, NoisyGradient, Step, SubsampledGaussian
from sfumato.privacy.gradients import Loss
from sfumato.privacy.gradients.terms import Coupled, Grouped
from sfumato.privacy.randomness import Draws

_COUNTS = "label counts"
_TRAIN = "training"
_DELTA = 1e-5  # of the paper's claims
_PRIORS: Mapping[str, type[Prior]] = {"normal": StandardNormal, "sparse": SparseMixture, "corners": Corners}
_CHOICES = {"prior": tuple(_PRIORS), "divergence": ("mmd", "kl"), "likelihood": ("bernoulli", "normal")}
# Noise multipliers of DP-SGD by the moments accountant, which the paper uses, at 256/60000 and 2344 steps.
_CLAIMED_NOISE = {10.0: 0.5153, 3.0: 0.7420, 1.0: 1.1569}
_CLAIMED_FOR = (256 / 60000, 2344)
_CODES = 50  # latent dimensions for Fashion-MNIST
_KAPPA = 2 * math.sqrt(math.log(_DELTA / 2) / math.log(_DELTA))  # below equation 16


@dataclass(frozen=True)
class PRIVAE(Method):
    """A conditional VAE with a divergence between all latent codes and a prior (Takahashi et al., 2020).

    Guarantee: noisy class counts, then ``steps`` noisy answers over Poisson batches, under adding or removing one unit.
    By variant a step is a noisy mean embedding and a clipped gradient in one event (``linearised``), a gradient of
    per-record and per-group terms under one noise (``grouped``), or one of the two baselines of the paper at the
    sensitivity that they really have.

    Differs from the paper: a group term has a sensitivity of twice its clip norm; groups are drawn record by record;
    encoder and decoder see the label; the networks are fully connected and trained by Adam. The ``published`` variant
    draws the authors' noise and states the ε that it really has.

    >>> from sfumato.privacy import Budget
    >>> plan = PRIVAE(variant="linearised", steps=10).plan(Budget(epsilon=10, delta=1e-5))
    >>> [block.name for block in plan.event("training").blocks]
    ['embedding', 'gradient']
    """

    name: ClassVar[str] = "privae"
    paper: ClassVar[str] = (
        "Takahashi et al.: Differentially Private Variational Autoencoders with Term-wise Gradient Aggregation (2020)"
    )
    variants: ClassVar[Mapping[str, str]] = {
        "linearised": "a noisy mean embedding of the batch, at which the divergence is a loss of single records",
        "grouped": "the divergence of random groups, under one noise with the per-record losses",
        "micro-aggregation": "the batch's divergence in every record's gradient: sensitivity (2B − 1)·C",
        "batch-aggregation": "one gradient for the whole batch: sensitivity 2·C",
        "published": "grouped with the authors' noise, certified at the ε it really has",
    }
    paper_settings: ClassVar[Mapping[str, Any]] = {
        "variant": "published",
        "sampling_rate": _CLAIMED_FOR[0],
        "steps": _CLAIMED_FOR[1],
        "batch_size": 256,
        "clip_norm": 0.05,
        "group_clip_norm": 0.005,
        "latent_dim": _CODES,
        # The paper weighs a sum over dimensions and scales by 100; here the kernel is their mean.
        "alpha": 100.0 * _CODES * len(CAUCHY_SCALES),
    }

    sampling_rate: float = 0.03
    steps: int = 300
    batch_size: int = 0
    groups: int = 16
    clip_norm: float = 1.0
    group_clip_norm: float = 0.003
    prior: str = "sparse"
    divergence: str = "mmd"
    alpha: float = 1000.0
    beta: float = 1.0
    draws: int = 1
    likelihood: str = "bernoulli"
    pixel_std: float = 0.05
    latent_dim: int = _CODES
    hidden: int = 100
    depth: int = 1
    learning_rate: float = 0.01
    embedding_noise: float = 2.0
    count_noise: float = 50.0
    claimed_epsilon: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, _CHOICES)
        if self.alpha < 0 or self.beta < 0:
            raise ValueError(f"alpha and beta must not be negative, but are {self.alpha:g} and {self.beta:g}")
        if self.claimed_epsilon not in _CLAIMED_NOISE:
            known = ", ".join(f"{claim:g}" for claim in sorted(_CLAIMED_NOISE))
            raise ValueError(f"the published noise is known for a claimed ε of {known}, not {self.claimed_epsilon:g}")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        # Groups and batches of one or two records and a large divergence, so that one unit can turn a vector around.
        sizes = {"micro-aggregation": (0.07, 20, 1), "batch-aggregation": (0.1, 16, 2), "published": (0.9, 3, 30)}
        sampling_rate, steps, batch_size = sizes.get(variant, (0.7, 2, 30))
        return cls(
            variant=variant,
            sampling_rate=sampling_rate,
            steps=steps,
            batch_size=batch_size,
            clip_norm=0.5,
            group_clip_norm=0.001,
            alpha=1e6,
            latent_dim=1,
            hidden=2,
            learning_rate=0.002,
            count_noise=5.0,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Class counts and the blocks of a training step."""
        blocks: tuple[Block, ...] = (Block("gradient"),)
        if self.variant == "linearised" and self.alpha:
            blocks = (Block("embedding", self.embedding_noise), *blocks)
        elif self.variant == "published":
            # Noise of κσ·C2 on a sum of sensitivity 2·C2: half of the multiplier is what is paid.
            noise = _CLAIMED_NOISE[self.claimed_epsilon] * (_KAPPA if self.alpha else 1.0)
            groups = (Block("groups", noise / 2, fixed=True),) if self.alpha else ()
            blocks = (Block("gradient", noise, fixed=True), *groups)
        return (
            SubsampledGaussian(_COUNTS, (Block(_COUNTS, self.count_noise, fixed=True),)),
            SubsampledGaussian(_TRAIN, blocks, sampling_rate=self.sampling_rate, steps=self.steps),
        )

    def claim(self) -> dict[str, Any] | None:
        """The paper's ε, for its own sampling rate and number of steps."""
        if self.variant != "published" or (self.sampling_rate, self.steps) != _CLAIMED_FOR:
            return None
        return {"epsilon": self.claimed_epsilon, "delta": _DELTA, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> VariationalAutoencoder:
        return VariationalAutoencoder(shape, classes, latent_dim=self.latent_dim, hidden=self.hidden, depth=self.depth)

    def code_prior(self) -> Prior:
        return _PRIORS[self.prior](self.latent_dim)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        counts = curator.noisy_histogram(_COUNTS)
        # B is a public number, or computed from released counts.
        size = float(self.batch_size or max(1.0, self.sampling_rate * counts.total))
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        noise = curator.plan.event(_TRAIN).blocks[0].noise_multiplier
        terms = LossTerms(self, self.code_prior(), self.divergence_of(floor=noise / size))
        for step in curator.steps(_TRAIN, keep={"model": model, "optimizer": optimizer}):
            terms.noisy_gradient(step, model, size).apply(optimizer)
        return model, counts

    def divergence_of(self, *, floor: float = 1e-3) -> Divergence:
        """The divergence; densities below ``floor`` cannot be told apart from noise."""
        if self.divergence == "mmd":
            return CauchyMMD(self.code_prior())
        return ForwardKL(self.code_prior(), floor=max(1e-3, floor))

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        model = expected(model, VariationalAutoencoder)
        weight = model.decode_last.weight
        return torch.sigmoid(model.decode(self.code_prior().draw(len(labels)).to(weight), labels))


@dataclass(frozen=True)
class LossTerms:
    """The loss of equation 7, divided into terms of single records and terms of several records."""

    method: PRIVAE
    prior: Prior
    divergence: Divergence

    def noisy_gradient(self, step: Step, model: VariationalAutoencoder, size: float) -> NoisyGradient:
        """The noisy gradient of one step, by variant; ``size`` is the public batch size B."""
        method = self.method
        if method.variant == "batch-aggregation":
            whole = Grouped(None, self.whole, groups=1, clip_norms=(0.0, method.clip_norm), batch=size)
            return step.noisy_terms("gradient", model, whole, draws=method.draws)
        if method.variant == "micro-aggregation":
            # A public cap that a batch of this expected size exceeds about once in a thousand steps.
            cap = method.batch_size or math.ceil(size + 3 * math.sqrt(size))
            return step.noisy_terms("gradient", model, Coupled(self.own, self.shared, method.clip_norm, cap))
        if method.variant == "linearised" or not method.alpha:
            loss = self.linearised(step, model, size) if method.alpha else self.own
            return step.noisy_gradient("gradient", model, loss, clip_norm=method.clip_norm, draws=method.draws) / size
        if method.variant == "published":
            own = (
                step.noisy_gradient("gradient", model, self.own, clip_norm=method.clip_norm, draws=method.draws) / size
            )
            shared = Grouped(
                None, self.shared, groups=method.groups, clip_norms=(0.0, method.group_clip_norm), batch=size
            )
            return own + step.noisy_terms("groups", model, shared, draws=method.draws)
        norms = (method.clip_norm, method.group_clip_norm)
        terms = Grouped(self.own, self.shared, groups=method.groups, clip_norms=norms, batch=size)
        return step.noisy_terms("gradient", model, terms, draws=method.draws)

    def own(self, model: VariationalAutoencoder, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """Reconstruction loss and β·KL(q(z|x) ‖ p), ``[B]``."""
        return self._own(model, model.encode(images, labels), images, labels, random)

    def _own(
        self, model: VariationalAutoencoder, posterior: Posterior, images: Tensor, labels: Tensor, random: Draws
    ) -> Tensor:
        codes = posterior.draw(random.normal("latent", self.method.latent_dim))
        logits, targets = model.decode(codes, labels).flatten(1), images.flatten(1)
        if self.method.likelihood == "bernoulli":
            pixels = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        else:
            pixels = -log_normal(targets, torch.sigmoid(logits), self.method.pixel_std)
        divergence = posterior.log_density(codes) - self.prior.log_density(codes)
        return pixels.sum(1) + self.method.beta * divergence

    def _embed(self, posterior: Posterior, random: Draws) -> Tensor:
        """The embedding ψ of each row, of norm at most 1."""
        return self.divergence.embed(posterior, random.normal("embedded", self.method.latent_dim))

    def shared(self, model: VariationalAutoencoder, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """α·D of all rows together, a scalar."""
        return self.method.alpha * self.divergence.between(self._embed(model.encode(images, labels), random))

    def whole(self, model: VariationalAutoencoder, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        posterior = model.encode(images, labels)
        own = self._own(model, posterior, images, labels, random).mean()
        return own + self.method.alpha * self.divergence.between(self._embed(posterior, random))

    def linearised(self, step: Step, model: VariationalAutoencoder, size: float) -> Loss:
        """The loss of one record, with the divergence linearised at the noisy mean embedding."""

        def features(images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return self._embed(model.encode(images, labels), random)

        total = step.noisy_sum("embedding", features, clip_norm=1.0)
        weights = self.method.alpha * gradient_of(self.divergence.distance, total / size)

        def loss(model: VariationalAutoencoder, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            # Encoded once: for a layer that is used twice the engine needs per-record gradients.
            posterior = model.encode(images, labels)
            return self._own(model, posterior, images, labels, random) + self._embed(posterior, random) @ weights

        return loss
