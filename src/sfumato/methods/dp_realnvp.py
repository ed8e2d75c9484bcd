"""DP-RealNVP: a normalizing flow on the pixels themselves, by DP-SGD; what a flow on codes is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape
from sfumato.networks.flows import RealNVP
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.randomness import Draws

_TRAIN = "training"
_GRADIENT = "gradient"
_MARGIN = 0.05  # pixels are kept so far from 0 and 1 that their logits stay small


class PixelFlow(nn.Module):
    """Pixels in 0..1 ↔ logits ↔ normal distribution; the label is an input of every coupling."""

    def __init__(self, shape: Shape, *, couplings: int, hidden: int, labels: int) -> None:
        super().__init__()
        self.shape = shape
        self.flow = RealNVP(torch.Size(shape).numel(), couplings=couplings, hidden=hidden, labels=labels)

    def log_density(self, images: Tensor, labels: Tensor) -> Tensor:
        """Of the logits, one number per row."""
        return self.flow.log_density(torch.logit(_MARGIN + (1 - 2 * _MARGIN) * images.flatten(1)), labels)

    def draw(self, labels: Tensor, *, temperature: float) -> Tensor:
        """An image for each label, with torch's global generator."""
        first = next(self.parameters())
        normal = torch.randn(len(labels), self.flow.dimensions, device=first.device, dtype=first.dtype)
        pixels = torch.sigmoid(self.flow.inverse(temperature * normal, labels)).nan_to_num(nan=0.5)
        return ((pixels - _MARGIN) / (1 - 2 * _MARGIN)).clamp(0.0, 1.0).unflatten(1, self.shape)


@dataclass(frozen=True)
class DPRealNVP(Method):
    """Maximum likelihood on pixels (Dinh et al., 2017, by DP-SGD as in figure 6 of DP-LFlow).

    Guarantee: ``steps`` noisy sums over Poisson batches of clipped gradients; adding or removing one unit.
    Differs from the paper: couplings of linear layers on all pixels instead of convolutions, and no batch
    normalisation, which would mix records.

    >>> [event.name for event in DPRealNVP(steps=10).plan(Budget(epsilon=1, delta=1e-5)).events]
    ['training']
    """

    name: ClassVar[str] = "dp-realnvp"
    paper: ClassVar[str] = "Dinh, Sohl-Dickstein, Bengio: RealNVP (2017), by DP-SGD as in DP-LFlow (TMLR 2023)"

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
            # Adam does not see how large a gradient is; the clip is public and makes it one.
            (gradient / self.clip_norm).apply(optimizer)
        return model, None

    def loss(self, model: PixelFlow, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """The negative log-likelihood for each pixel, at a random place within its grey level."""
        pixels = torch.nan_to_num(images).clamp(0.0, 1.0)
        spread = (255.0 * pixels + random.uniform("grey level", *images.shape[1:])) / 256.0
        return -model.log_density(spread, labels) / model.flow.dimensions

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        if not isinstance(model, PixelFlow):
            raise TypeError(f"a flow on pixels is needed, not {type(model).__name__}")
        return model.draw(labels, temperature=self.temperature)
