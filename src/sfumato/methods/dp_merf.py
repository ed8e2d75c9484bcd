"""DP-MERF: one noisy mean embedding, and a generator that is trained on it without further cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method
from sfumato.methods.parts.class_gaussians import divisors
from sfumato.methods.parts.divergences import FourierFeatures, unbiased_distance
from sfumato.networks.generators import ConvGenerator
from sfumato.networks.pixels import Shape
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian

_EMBEDDING = "mean embedding"
_COUNTS = "label counts"


@dataclass(frozen=True)
class DPMERF(Method):
    """Match the mean embedding of each class in random Fourier features (Harder et al., AISTATS 2021).

    Guarantee: two noisy sums over all units (embedding and label counts), under adding or removing one unit. The
    embedding of a unit has norm 1 and contributes to the slice of its class.

    Differs from the paper: the number of records comes from noisy counts instead of being public; the distance is the
    unbiased estimate, so that the variance of a batch does not pull the generated images together.

    >>> from sfumato.privacy import Budget
    >>> [event.name for event in DPMERF(features=100).plan(Budget(epsilon=1, delta=1e-5)).events]
    ['label counts', 'mean embedding']
    """

    name: ClassVar[str] = "dp-merf"
    paper: ClassVar[str] = "Harder, Adamczewski, Park: DP-MERF (AISTATS 2021)"

    features: int = 2000
    length_scale: float = 10.0
    latent_dim: int = 5
    width: int = 8
    iterations: int = 3000
    batch_size: int = 200
    learning_rate: float = 0.005
    count_noise: float = 50.0

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(variant=variant, features=64, width=2, iterations=5, batch_size=20, count_noise=5.0)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Label counts and mean embedding."""
        return (
            SubsampledGaussian(_COUNTS, (Block(_COUNTS, self.count_noise, fixed=True),)),
            SubsampledGaussian(_EMBEDDING, (Block(_EMBEDDING),)),
        )

    def build(self, shape: Shape, classes: int) -> ConvGenerator:
        return ConvGenerator(shape, classes, latent_dim=self.latent_dim, width=self.width)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        """Ask for counts and embedding, then train the generator on them."""
        classes, device = len(curator.classes), curator.device
        counts = curator.noisy_histogram(_COUNTS)
        pixels = torch.Size(curator.shape).numel()
        embed = FourierFeatures(pixels, features=self.features, length_scale=self.length_scale, device=device)

        def embedding(images: Tensor, labels: Tensor, random: object) -> Tensor:
            return embed(images)

        total = curator.noisy_sum(_EMBEDDING, embedding, clip_norm=1.0, by_class=True)
        target = total / divisors(counts)[:, None]
        model = self.build(curator.shape, classes).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        # Without the warm-up a first step can leave all ReLUs of the generator inactive.
        # A warm-up of exactly one step is a division by zero in OneCycleLR.
        start = 0.2 if self.iterations == 10 else 0.1
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, self.iterations, pct_start=start)
        images = max(2, self.batch_size // classes)
        labels = torch.arange(classes, device=device).repeat_interleave(images)
        keep = {"generator": model, "optimizer": optimizer, "schedule": schedule}
        for _ in curator.track(range(self.iterations), "generator", self.iterations, keep=keep):
            embedded = embed(model(labels)).view(classes, images, -1)
            optimizer.zero_grad(set_to_none=True)
            unbiased_distance(embedded, target).backward()
            optimizer.step()
            schedule.step()
        return model, counts
