"""GS-WGAN: many critics that nobody sees, and a generator that hears their noisy opinion of its images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape
from sfumato.methods.parts.sharded_critics import Critics
from sfumato.networks.critic import Critic
from sfumato.networks.dcgan import Generator
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.randomness import Draws
from sfumato.training.ema import ema_update
from sfumato.training.schedules import cosine_decay

_COUNTS = "label counts"
_TRAIN = "training"
_SLOPE = "slope"
# What the authors' script draws for a claimed ε of 10, in multiples of the clip of one image: 1.07 · 2.
_PUBLISHED_NOISE = 2.14
_PUBLISHED: dict[str, Any] = {"shards": 1000, "sampling_rate": 0.001, "steps": 20_000, "fakes": 32, "critic_steps": 5}


@dataclass(frozen=True)
class GSWGAN(Method):
    """A generator taught by the critics of many shards (Chen, Orekondy and Fritz, NeurIPS 2020).

    Guarantee: noisy class counts, then ``steps`` noisy sums over shards whose coin came up. A shard trains a critic on
    its own records, without noise and kept between visits, and says with one vector where its critic wants the
    ``fakes`` images of the step to go, each image's part clipped to ``clip``. One unit can turn that vector around:
    everything is counted under replacement.
    Differs from the paper: see docs/methods/gs-wgan.md. The ``published`` variant takes the authors' noise and gets the
    ε that it really has.

    >>> plan = GSWGAN(sampling_rate=0.1, steps=300).plan(Budget(epsilon=10, delta=1e-5))
    >>> 1.71 < plan.event("training").noise_multiplier < 1.74
    True
    """

    name: ClassVar[str] = "gs-wgan"
    paper: ClassVar[str] = "Chen, Orekondy, Fritz: GS-WGAN (NeurIPS 2020)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "critics of shards, whose sum of slopes is noised",
        "published": "the authors' noise, certified at the ε it really has",
    }

    shards: int = 3000
    sampling_rate: float = 0.1
    steps: int = 200
    fakes: int = 16
    clip_norm: float = 1.0
    warm_start_rounds: int = 10
    critic_width: int = 4
    critic_steps: int = 5
    critic_learning_rate: float = 0.004
    gradient_penalty: float = 10.0
    latent_dim: int = 10
    width: int = 16
    learning_rate: float = 0.004
    final_learning_rate_factor: float = 0.3
    ema_decay: float = 0.9
    count_noise: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.shards, self.fakes, self.critic_steps) < 1 or self.warm_start_rounds < 0:
            raise ValueError("shards, fakes and critic_steps are at least 1, and warm_start at least 0")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), not {self.ema_decay:g}; 0 releases the last weights")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        # Where the noise is fixed, coins, steps and fakes say what a run costs: ε 25.
        rate, fakes = (1.0, 9) if variant == "published" else (0.8, 4)
        return cls(
            variant=variant,
            shards=2,
            sampling_rate=rate,
            steps=2,
            fakes=fakes,
            clip_norm=1e-3,
            warm_start_rounds=1,
            critic_width=2,
            critic_steps=1,
            critic_learning_rate=0.05,
            latent_dim=4,
            width=2,
            ema_decay=0.5,
            count_noise=20.0,
        )

    @classmethod
    def as_in_the_paper(cls, variant: str = "published") -> Self:
        """The authors' settings as far as they are those of this network."""
        return cls(
            variant=variant, clip_norm=1.0, latent_dim=10, final_learning_rate_factor=1.0, ema_decay=0.999, **_PUBLISHED
        )

    @property
    def bound(self) -> float:
        """Of a shard's whole vector."""
        return self.clip_norm * math.sqrt(self.fakes)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        slope = Block(_SLOPE)
        if self.variant == "published":
            slope = Block(_SLOPE, _PUBLISHED_NOISE * self.clip_norm / self.bound, fixed=True)
        counts = SubsampledGaussian(_COUNTS, (Block(_COUNTS, self.count_noise, fixed=True),))
        return counts, SubsampledGaussian(
            _TRAIN, (slope,), sampling_rate=self.sampling_rate, steps=self.steps, shards=self.shards
        )

    def claim(self) -> dict[str, Any] | None:
        if self.variant != "published" or any(getattr(self, key) != value for key, value in _PUBLISHED.items()):
            return None
        return {"epsilon": 10.0, "delta": 1e-5, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> Generator:
        return Generator(shape, classes, code=self.latent_dim, width=self.width)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        classes, device = len(curator.classes), curator.device
        counts = curator.noisy_histogram(_COUNTS)
        model, average = (self.build(curator.shape, classes).to(device) for _ in range(2))
        average.load_state_dict(model.state_dict())
        critics = Critics(
            Critic(curator.shape, classes, width=self.critic_width).to(device),
            steps=self.critic_steps,
            rate=self.critic_learning_rate,
            penalty=self.gradient_penalty,
        )
        size = (self.fakes, *curator.shape)
        memory = curator.private_state("critics", (len(critics) + math.prod(size),), shards=self.shards)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate, betas=(0.5, 0.9))
        each = torch.arange(classes, device=device).repeat_interleave(self.fakes)
        odds = counts.proportions.to(device)

        def said(images: Tensor, labels: Tensor, random: Draws, memory: Tensor) -> Tensor:
            return memory[:, len(critics) :]

        for step in curator.steps(_TRAIN, keep={"model": model, "optimizer": optimizer, "average": average}):
            optimizer.param_groups[0]["lr"] = self.learning_rate * cosine_decay(
                step.index / self.steps, final=self.final_learning_rate_factor
            )
            wanted = torch.multinomial(odds, self.fakes, replacement=True)
            with torch.no_grad():
                pool = model(each).unflatten(0, (classes, self.fakes))
            fakes = model(wanted)
            step.update(memory, _Visit(self, critics, pool, fakes.detach(), wanted))
            slope = step.noisy_sum(_SLOPE, said, clip_norm=self.bound, state=memory).view(size)
            optimizer.zero_grad(set_to_none=True)
            fakes.backward(-slope / (self.bound * self.sampling_rate * self.shards))
            optimizer.step()
            ema_update(average, model, index=step.index, decay=self.ema_decay)
        for kept, last in zip(average.buffers(), model.buffers(), strict=True):
            kept.copy_(last)
        return average, counts

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        images: Tensor = model(labels)
        return images


@dataclass(frozen=True)
class _Visit:
    """What the shards do whose coin came up: each trains its critic, then writes down what it would say."""

    method: GSWGAN
    critics: Critics
    pool: Tensor
    fakes: Tensor
    wanted: Tensor

    def __call__(self, images: Tensor, labels: Tensor, shares: Tensor, random: Draws, memory: Tensor) -> Tensor:
        images = torch.nan_to_num(images, nan=0.0, posinf=1.0, neginf=0.0)
        picked = random.integers("fake", self.pool.shape[1], 1)[:, 0].view_as(labels)
        opposite = self.pool[labels, picked]
        mixes = random.uniform("mix", self.critics.steps).unflatten(0, labels.shape)
        moved = memory[:, : len(self.critics)]
        new = (moved == 0).all(1).nonzero()[:, 0]  # never visited
        if len(new) and self.method.warm_start_rounds:
            own = (images[new], opposite[new], labels[new], shares[new], mixes[new])
            moved = moved.index_copy(0, new, self._warmed(moved[new], *own))
        moved = self.critics.trained(moved, images, opposite, labels, shares, mixes)
        owners = len(moved)
        shown = self.fakes.expand(owners, *self.fakes.shape), self.wanted.expand(owners, -1)
        slopes = self.critics.slopes(moved, *shown).flatten(2)
        slopes = slopes * (self.method.clip_norm / slopes.norm(dim=2, keepdim=True).clamp(min=self.method.clip_norm))
        return torch.cat([moved, slopes.flatten(1)], dim=1)

    def _warmed(
        self, moved: Tensor, images: Tensor, fakes: Tensor, labels: Tensor, shares: Tensor, mixes: Tensor
    ) -> Tensor:
        """Before its first word a critic meets fakes that follow its slopes, as a generator's would."""
        for _ in range(self.method.warm_start_rounds):
            moved = self.critics.trained(moved, images, fakes, labels, shares, mixes)
            slopes = self.critics.slopes(moved, fakes, labels)
            length = slopes.flatten(2).norm(dim=2).clamp(min=1e-12)[:, :, None, None, None]
            fakes = (fakes + slopes / length).clamp(0.0, 1.0)
        return moved
