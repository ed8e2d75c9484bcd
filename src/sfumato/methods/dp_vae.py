"""DP-VAE: a conditional variational autoencoder by plain DP-SGD, the usual baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, check_ema_decay, expected
from sfumato.networks.pixels import Shape, one_hot
from sfumato.networks.vae import LOG_STD_MAX, LOG_STD_MIN, Autoencoder, bernoulli_nll
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.randomness import Draws
from sfumato.training.optimisation import ema_update

_TRAIN = "training"
_GRADIENT = "gradient"


class ConditionalVAE(Autoencoder):
    """An autoencoder whose encoder also gives the standard deviation of the code and whose decoder sees the label."""

    def __init__(self, shape: Shape, *, latent_dim: int, width: int, labels: int) -> None:
        super().__init__(shape, latent_dim=latent_dim, width=width)
        self.latent_dim, self.labels = latent_dim, labels
        flat = math.prod(self.seed)
        self.encode_log_std = nn.Linear(flat, latent_dim)
        self.decode_first = nn.Linear(latent_dim + labels, flat)

    def negative_elbo(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """Negative ELBO at one draw of standard normal ``noise``, ``[B]``."""
        features = self.features(images)
        mean, log_std = self.encode_last(features), self.encode_log_std(features).clamp(LOG_STD_MIN, LOG_STD_MAX)
        logits = self.decode_for(mean + log_std.exp() * noise, labels)
        kl = 0.5 * (mean.square() + (2.0 * log_std).exp() - 1.0 - 2.0 * log_std).sum(1)
        return bernoulli_nll(logits, images) + kl

    def decode_for(self, code: Tensor, labels: Tensor) -> Tensor:
        return self.decode(torch.cat([code, one_hot(labels, self.labels, code)], dim=1))


@dataclass(frozen=True)
class DPVAE(Method):
    """Encoder and decoder, trained together by DP-SGD on the ELBO.

    Guarantee: ``steps`` noisy sums of clipped gradients over Poisson batches, under adding or removing one unit.

    Differs from the papers that compare with it: the released weights are an exponential moving average.

    >>> from sfumato.privacy import Budget
    >>> [event.name for event in DPVAE(steps=10).plan(Budget(epsilon=1, delta=1e-5)).events]
    ['training']
    """

    name: ClassVar[str] = "dp-vae"
    paper: ClassVar[str] = "Kingma, Welling: variational autoencoders (2014), by DP-SGD as in DP-LFlow (TMLR 2023)"

    sampling_rate: float = 0.1
    steps: int = 300
    latent_dim: int = 8
    width: int = 16
    clip_norm: float = 0.1
    draws: int = 1
    learning_rate: float = 0.005
    ema_decay: float = 0.9
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ema_decay(self.ema_decay)

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        sizes = {"steps": 2, "latent_dim": 3, "width": 2}
        return cls(variant=variant, sampling_rate=0.6, clip_norm=0.01, ema_decay=0.5, **sizes)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        gradient = (Block(_GRADIENT),)
        return (SubsampledGaussian(_TRAIN, gradient, sampling_rate=self.sampling_rate, steps=self.steps),)

    def build(self, shape: Shape, classes: int) -> ConditionalVAE:
        return ConditionalVAE(shape, latent_dim=self.latent_dim, width=self.width, labels=classes)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model, average = (self.build(curator.shape, len(curator.classes)).to(curator.device) for _ in range(2))
        average.load_state_dict(model.state_dict())
        average.requires_grad_(False)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        for step in curator.steps(_TRAIN, keep={"model": model, "optimizer": optimizer, "average": average}):
            gradient = step.noisy_gradient(_GRADIENT, model, self.loss, clip_norm=self.clip_norm, draws=self.draws)
            # Adam is invariant to the scale of the gradient; the public clip norm brings it to order 1.
            (gradient / self.clip_norm).apply(optimizer)
            ema_update(average, model, index=step.index, decay=self.ema_decay)
        return average, None

    def loss(self, model: ConditionalVAE, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """Negative ELBO, ``[B]``."""
        return model.negative_elbo(images, labels, random.normal("latent", self.latent_dim))

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """Images of codes from the standard normal distribution."""
        model = expected(model, ConditionalVAE)
        weight = model.decode_first.weight
        code = self.temperature * torch.randn(len(labels), self.latent_dim, device=weight.device, dtype=weight.dtype)
        return torch.sigmoid(model.decode_for(code, labels))
