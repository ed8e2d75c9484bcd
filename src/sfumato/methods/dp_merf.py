"""DP-MERF: one noisy mean embedding, then a generator trained on it for free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape
from sfumato.networks.generators import ConvGenerator
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian

_EMBEDDING = "mean embedding"
_COUNTS = "label counts"


@dataclass(frozen=True)
class DPMERF(Method):
    """Match the classes' mean embeddings in random Fourier features (Harder et al., AISTATS 2021).

    Guarantee: two noisy sums over everyone (embedding, label counts), add or remove one unit; a unit's embedding has
    norm 1 and lives in the slice of its class.
    Differs from the paper: the number of records comes from a noisy histogram instead of being taken as public; the
    distance is the unbiased estimate, so that the batch's own variance does not pull the generator together.

    >>> DPMERF(features=100).plan(Budget(epsilon=1, delta=1e-5)).events[1].name
    'mean embedding'
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
        return (
            SubsampledGaussian(_COUNTS, (Block(_COUNTS, self.count_noise, fixed=True),)),
            SubsampledGaussian(_EMBEDDING, (Block(_EMBEDDING),)),
        )

    def build(self, shape: Shape, classes: int) -> ConvGenerator:
        return ConvGenerator(shape, classes, code=self.latent_dim, width=self.width)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        classes, device = len(curator.classes), curator.device
        counts = curator.noisy_histogram(_COUNTS)
        pixels = torch.Size(curator.shape).numel()
        frequencies = torch.randn(pixels, self.features // 2, device=device) / self.length_scale

        def embed(images: Tensor, labels: Tensor | None = None, random: object = None) -> Tensor:
            angles = images.flatten(1) @ frequencies
            return torch.cat([angles.cos(), angles.sin()], dim=1) / (self.features // 2) ** 0.5

        total = curator.noisy_sum(_EMBEDDING, embed, clip_norm=1.0, by_class=True)
        # A class of which nothing but noise is known gets the smallest count that does not blow the noise up.
        target = total / counts.values.clamp(min=max(1.0, counts.total / (100 * classes)))[:, None]
        model = self.build(curator.shape, classes).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        # Without the gentle start a first step can switch all units of the generator off for good.
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.learning_rate, self.iterations, pct_start=0.1)
        each = max(2, self.batch_size // classes)
        labels = torch.arange(classes, device=device).repeat_interleave(each)
        for _ in curator.track(range(self.iterations), "generator", self.iterations):
            embedded = embed(model(labels)).view(classes, each, -1)
            mean = embedded.mean(1)
            # Every embedding has norm 1, so the pairs i = j of |mean|² are known and can be taken out.
            own = (each * mean.square().sum() - classes) / (each - 1)
            distance = own - 2 * (mean * target).sum()
            optimizer.zero_grad(set_to_none=True)
            distance.backward()
            optimizer.step()
            schedule.step()
        return model, counts

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        images: Tensor = model(labels)
        return images
