"""DP-RealNVP: a normalizing flow on the pixels, by DP-SGD; the baseline of flows on latent codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, expected
from sfumato.networks.flows import RealNVP
from sfumato.networks.pixels import Shape, valid_pixels
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.randomness import Draws

_TRAIN = "training"
_GRADIENT = "gradient"
_MARGIN = 0.05  # pixels stay this far from 0 and 1, so that their logits stay small


class PixelFlow(nn.Module):
    """A flow between the logits of pixels in 0..1 and a standard normal distribution, conditional on the label."""

    def __init__(self, shape: Shape, *, couplings: int, hidden: int, labels: int) -> None:
        super().__init__()
        self.shape = shape
        self.flow = RealNVP(torch.Size(shape).numel(), couplings=couplings, hidden=hidden, labels=labels)

    def log_density(self, images: Tensor, labels: Tensor) -> Tensor:
        """Log-density of the logit-transformed pixels, ``[B]``."""
        return self.flow.log_density(torch.logit(_MARGIN + (1 - 2 * _MARGIN) * images.flatten(1)), labels)

    def draw(self, labels: Tensor, *, temperature: float) -> Tensor:
        first = next(self.parameters())
        normal = torch.randn(len(labels), self.flow.dimensions, device=first.device, dtype=first.dtype)
        pixels = torch.sigmoid(self.flow.inverse(temperature * normal, labels)).nan_to_num(nan=0.5)
        return ((pixels - _MARGIN) / (1 - 2 * _MARGIN)).clamp(0.0, 1.0).unflatten(1, self.shape)


@dataclass(frozen=True)
class DPRealNVP(Method):
    """Maximum likelihood on pixels (Dinh et al., 2017, by DP-SGD as in figure 6 of DP-LFlow).

    Guarantee: ``steps`` noisy sums of clipped gradients over Poisson batches, under adding or removing one unit.

    Differs from the paper: linear layers on all pixels instead of convolutions, and no batch normalisation, which
    would mix records.

    >>> from sfumato.privacy import Budget
    >>> [event.name for event in DPRealNVP(steps=10).plan(Budget(epsilon=1, delta=1e-5)).events]
    ['training']
    """

    name: ClassVar[str] = "dp-realnvp"
    paper: ClassVar[str] = "Dinh, Sohl-Dickstein, Bengio: RealNVP (2017), by DP-SGD as in DP-LFlow (TMLR 2023)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "a baseline: classifiers trained on its images of MNIST are at chance, at ε = 1 and at ε = 10"
    }

    sampling_rate: float = 0.1
    steps: int = 300
    couplings: int = 9
    hidden: int = 512
    clip_norm: float = 0.1
    learning_rate: float = 0.001
    temperature: float = 1.0

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(variant=variant, sampling_rate=0.6, steps=2, couplings=2, hidden=4, clip_norm=0.01)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return (SubsampledGaussian(_TRAIN, (Block(_GRADIENT),), sampling_rate=self.sampling_rate, steps=self.steps),)

    def build(self, shape: Shape, classes: int) -> PixelFlow:
        return PixelFlow(shape, couplings=self.couplings, hidden=self.hidden, labels=classes)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        for step in curator.steps(_TRAIN, keep={"model": model, "optimizer": optimizer}):
            gradient = step.noisy_gradient(_GRADIENT, model, self.loss, clip_norm=self.clip_norm)
            # Adam is invariant to the scale of the gradient; the public clip norm brings it to order 1.
            (gradient / self.clip_norm).apply(optimizer)
        return model, None

    def loss(self, model: PixelFlow, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """Negative log-likelihood per dimension of uniformly dequantised pixels, ``[B]``."""
        dequantised = (255.0 * valid_pixels(images) + random.uniform("grey level", *images.shape[1:])) / 256.0
        return -model.log_density(dequantised, labels) / model.flow.dimensions

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        return expected(model, PixelFlow).draw(labels, temperature=self.temperature)
