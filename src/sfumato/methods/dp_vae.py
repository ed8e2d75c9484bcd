"""DP-VAE: a conditional variational autoencoder by plain DP-SGD, the baseline of the papers that improve on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.base import Method, Shape
from sfumato.networks.autoencoders import Autoencoder
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.randomness import Draws

_TRAIN = "training"
_GRADIENT = "gradient"
_LEAST, _MOST = -5.0, 2.0  # of a posterior's log-deviation


class ConditionalVAE(Autoencoder):
    """The encoder also says how sure it is of the code; the decoder is told the label."""

    def __init__(self, shape: Shape, *, code: int, width: int, labels: int) -> None:
        super().__init__(shape, code=code, width=width)
        self.latent_dim, self.labels = code, labels
        flat = math.prod(self.seed)
        self.encode_spread = nn.Linear(flat, code)
        self.decode_first = nn.Linear(code + labels, flat)

    def negative_bound(self, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        """Of the evidence, at one draw of ``noise``; one number per row."""
        features = self.features(images)
        mean, spread = self.encode_last(features), self.encode_spread(features).clamp(_LEAST, _MOST)
        logits = self.decode_for(mean + spread.exp() * noise, labels)
        pixels = F.binary_cross_entropy_with_logits(logits, images, reduction="none").flatten(1).sum(1)
        return pixels + 0.5 * (mean.square() + (2.0 * spread).exp() - 1.0 - 2.0 * spread).sum(1)

    def decode_for(self, code: Tensor, labels: Tensor) -> Tensor:
        """Logits of the pixels."""
        told = (labels[:, None] == torch.arange(self.labels, device=labels.device)).to(code)
        return self.decode(torch.cat([code, told], dim=1))


@dataclass(frozen=True)
class DPVAE(Method):
    """Encoder and decoder learn together from clipped gradients of the evidence bound.

    Guarantee: ``steps`` noisy sums over Poisson batches of clipped gradients; adding or removing one unit.
    Differs from the papers that compare with it: the average of the weights over the last steps is released.

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

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(variant=variant, sampling_rate=0.6, steps=2, latent_dim=3, width=2, clip_norm=0.01, ema_decay=0.5)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return (SubsampledGaussian(_TRAIN, (Block(_GRADIENT),), sampling_rate=self.sampling_rate, steps=self.steps),)

    def build(self, shape: Shape, classes: int) -> ConditionalVAE:
        return ConditionalVAE(shape, code=self.latent_dim, width=self.width, labels=classes)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model, average = (self.build(curator.shape, len(curator.classes)).to(curator.device) for _ in range(2))
        average.load_state_dict(model.state_dict())
        average.requires_grad_(False)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        for step in curator.steps(_TRAIN, keep={"model": model, "optimizer": optimizer, "average": average}):
            gradient = step.noisy_gradient(_GRADIENT, model, self.loss, clip_norm=self.clip_norm, draws=self.draws)
            # Adam does not see how large a gradient is; the clip is public and makes it one.
            (gradient / self.clip_norm).apply(optimizer)
            decay = min(self.ema_decay, (1 + step.index) / (10 + step.index))
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
        return average, None

    def loss(self, model: ConditionalVAE, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return model.negative_bound(images, labels, random.normal("latent", self.latent_dim))

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        if not isinstance(model, ConditionalVAE):
            raise TypeError(f"a conditional VAE is needed, not {type(model).__name__}")
        weight = model.decode_first.weight
        code = self.temperature * torch.randn(len(labels), self.latent_dim, device=weight.device, dtype=weight.dtype)
        return torch.sigmoid(model.decode_for(code, labels))
