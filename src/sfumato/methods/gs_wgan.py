"""GS-WGAN: critics that stay private, one for each shard, and a generator that sees their noisy image gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from sfumato.methods.base import Method, check_ema_decay
from sfumato.networks.generators import Critic, Generator
from sfumato.networks.pixels import Shape
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.randomness import Draws
from sfumato.training.optimisation import cosine_decay, ema_update, minimise, set_learning_rate


class ShardedCritics:
    """Copies of one critic, all evaluated side by side.

    All critics start from the same public weights; the private state of a shard is the offset of its critic's weights
    from them, ``[shards, parameters]``.
    """

    def __init__(self, critic: Critic, *, steps: int, learning_rate: float, gradient_penalty: float) -> None:
        self.steps, self.learning_rate, self.gradient_penalty = steps, learning_rate, gradient_penalty
        self._critic = critic.requires_grad_(False)
        self._shapes = {name: weight.shape for name, weight in critic.named_parameters()}
        self.start = parameters_to_vector(critic.parameters())

    def __len__(self) -> int:
        return len(self.start)

    def values(self, offsets: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Each shard's critic on its own images ``[shards, rows, C, H, W]``: values ``[shards, rows]``."""

        def one(weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
            pieces = weights.split([shape.numel() for shape in self._shapes.values()])
            own = {name: piece.view(self._shapes[name]) for name, piece in zip(self._shapes, pieces, strict=True)}
            found: Tensor = functional_call(self._critic, own, (images, labels))
            return found

        return torch.vmap(one)(self.start + offsets, images, labels)

    def image_gradients(self, offsets: Tensor, images: Tensor, labels: Tensor, *, create_graph: bool = False) -> Tensor:
        """The gradient of each critic's value with respect to each image, in the shape of the images."""
        with torch.enable_grad():
            images = images.detach().requires_grad_()
            values = self.values(offsets, images, labels)
            (found,) = torch.autograd.grad(values.sum(), images, create_graph=create_graph)
        return found

    def trained(
        self, offsets: Tensor, images: Tensor, fakes: Tensor, labels: Tensor, shares: Tensor, mixes: Tensor
    ) -> Tensor:
        """The offsets after ``steps`` steps of each critic on its own shard (Wasserstein loss, gradient penalty).

        Real and generated images ``[shards, rows, C, H, W]`` have the same labels; ``shares`` weigh the rows, 0 for
        padding; ``mixes`` ``[shards, rows, steps]`` interpolate for the penalty.
        """

        def loss(offsets: Tensor, number: int) -> Tensor:
            mix = mixes[:, :, number, None, None, None]
            mixed = mix * images + (1.0 - mix) * fakes
            gradients = self.image_gradients(offsets, mixed, labels, create_graph=True)
            norms = torch.sqrt(gradients.flatten(2).square().sum(2) + 1e-12)
            gain = self.values(offsets, images, labels) - self.values(offsets, fakes, labels)
            return (shares * (self.gradient_penalty * (norms - 1.0).square() - gain)).sum()

        return minimise(loss, offsets, steps=self.steps, learning_rate=self.learning_rate)


_COUNTS = "label counts"
_TRAIN = "training"
_GRADIENT = "slope"  # the block's name on the ledgers of version 0.1.0, and a key of the noise
# The authors' script, for a claimed ε of 10: noise in multiples of the clip norm of one image, 1.07 · 2.
_PUBLISHED_NOISE = 2.14
_PUBLISHED: dict[str, Any] = {
    "shards": 1000,
    "sampling_rate": 0.001,
    "steps": 20_000,
    "fakes": 32,
    "critic_steps": 5,
}


@dataclass(frozen=True)
class GSWGAN(Method):
    """A generator trained by the critics of many shards (Chen, Orekondy and Fritz, NeurIPS 2020).

    Guarantee: noisy class counts, then ``steps`` noisy sums over Poisson-sampled shards. A sampled shard trains a
    critic on its own records, without noise and kept as private state, and contributes the gradient of its critic with
    respect to the ``fakes`` images of the step, each image's part clipped to ``clip_norm``. One unit can turn the whole
    vector of its shard around, so everything is accounted for under replacing one unit.

    Differs from the paper: shards are sampled independently and are accounted for with twice the clip norm; critics
    are small and trained with class counts that are noisy; the released weights are an exponential moving average.
    The ``published`` variant draws the authors' noise and states the ε that it really has.

    >>> from sfumato.privacy import Budget
    >>> plan = GSWGAN(sampling_rate=0.1, steps=10).plan(Budget(epsilon=10, delta=1e-5))
    >>> plan.event("training").shards
    3000
    """

    name: ClassVar[str] = "gs-wgan"
    paper: ClassVar[str] = "Chen, Orekondy, Fritz: GS-WGAN (NeurIPS 2020)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "noisy sums of the image gradients of one critic for each shard",
        "published": "the authors' noise, certified at the ε it really has",
    }
    paper_settings: ClassVar[Mapping[str, Any]] = {
        "variant": "published",
        "final_learning_rate_factor": 1.0,
        "ema_decay": 0.999,
        **_PUBLISHED,
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
            raise ValueError("shards, fakes and critic_steps are at least 1, and warm_start_rounds at least 0")
        check_ema_decay(self.ema_decay)

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        # Where the noise is fixed, sampling rate, steps and fakes determine the cost: ε 25.
        sampling_rate, fakes = (1.0, 9) if variant == "published" else (0.8, 4)
        sizes = {"shards": 2, "steps": 2, "critic_width": 2, "critic_steps": 1, "latent_dim": 4, "width": 2}
        return cls(
            variant=variant,
            sampling_rate=sampling_rate,
            fakes=fakes,
            clip_norm=1e-3,
            warm_start_rounds=1,
            critic_learning_rate=0.05,
            ema_decay=0.5,
            count_noise=20.0,
            **sizes,
        )

    @property
    def shard_clip_norm(self) -> float:
        return self.clip_norm * math.sqrt(self.fakes)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Class counts and the sums of image gradients over shards."""
        gradient = Block(_GRADIENT)
        if self.variant == "published":
            gradient = Block(_GRADIENT, _PUBLISHED_NOISE * self.clip_norm / self.shard_clip_norm, fixed=True)
        counts = SubsampledGaussian(_COUNTS, (Block(_COUNTS, self.count_noise, fixed=True),))
        rate, steps = self.sampling_rate, self.steps
        return counts, SubsampledGaussian(_TRAIN, (gradient,), sampling_rate=rate, steps=steps, shards=self.shards)

    def claim(self) -> dict[str, Any] | None:
        if self.variant != "published" or any(getattr(self, key) != value for key, value in _PUBLISHED.items()):
            return None
        return {"epsilon": 10.0, "delta": 1e-5, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> Generator:
        return Generator(shape, classes, latent_dim=self.latent_dim, width=self.width)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        """Class counts, then the generator on the critics' noisy image gradients."""
        classes, device = len(curator.classes), curator.device
        counts = curator.noisy_histogram(_COUNTS)
        model, average = (self.build(curator.shape, classes).to(device) for _ in range(2))
        average.load_state_dict(model.state_dict())
        critics = ShardedCritics(
            Critic(curator.shape, classes, width=self.critic_width).to(device),
            steps=self.critic_steps,
            learning_rate=self.critic_learning_rate,
            gradient_penalty=self.gradient_penalty,
        )
        size = (self.fakes, *curator.shape)
        state = curator.private_state("critics", (len(critics) + math.prod(size),), shards=self.shards)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate, betas=(0.5, 0.9))
        pool_labels = torch.arange(classes, device=device).repeat_interleave(self.fakes)
        proportions = counts.proportions.to(device)

        def image_gradients(images: Tensor, labels: Tensor, random: Draws, state: Tensor) -> Tensor:
            return state[:, len(critics) :]

        for step in curator.steps(_TRAIN, keep={"model": model, "optimizer": optimizer, "average": average}):
            factor = cosine_decay(step.index / self.steps, final=self.final_learning_rate_factor)
            set_learning_rate(optimizer, self.learning_rate * factor)
            labels = torch.multinomial(proportions, self.fakes, replacement=True)
            with torch.no_grad():
                pool = model(pool_labels).unflatten(0, (classes, self.fakes))
            fakes = model(labels)
            step.update(state, _CriticUpdate(self, critics, pool, fakes.detach(), labels))
            clip_norm = self.shard_clip_norm
            gradient = step.noisy_sum(_GRADIENT, image_gradients, clip_norm=clip_norm, state=state).view(size)
            optimizer.zero_grad(set_to_none=True)
            fakes.backward(-gradient / (clip_norm * self.sampling_rate * self.shards))
            optimizer.step()
            ema_update(average, model, index=step.index, decay=self.ema_decay)
        for averaged, last in zip(average.buffers(), model.buffers(), strict=True):
            averaged.copy_(last)
        return average, counts


@dataclass(frozen=True)
class _CriticUpdate:
    """What a sampled shard does: train its critic, then compute its clipped gradient at every fake.

    The private state of a shard is the offset of its critic's weights, followed by these gradients.
    """

    method: GSWGAN
    critics: ShardedCritics
    pool: Tensor
    fakes: Tensor
    labels: Tensor

    def __call__(self, images: Tensor, labels: Tensor, shares: Tensor, random: Draws, state: Tensor) -> Tensor:
        images = torch.nan_to_num(images, nan=0.0, posinf=1.0, neginf=0.0)
        picked = random.integers("fake", self.pool.shape[1], 1)[:, 0].view_as(labels)
        opposite = self.pool[labels, picked]
        mixes = random.uniform("mix", self.critics.steps).unflatten(0, labels.shape)
        offsets = state[:, : len(self.critics)]
        new = (offsets == 0).all(1) & (shares > 0).any(1)  # never sampled before; padding has no shares
        if len(new.nonzero()) and self.method.warm_start_rounds:
            # All shards at once, so that a shard's shape does not depend on how many others are new.
            started = self._warm_started(offsets, images, opposite, labels, shares, mixes)
            offsets = torch.where(new[:, None], started, offsets)
        offsets = self.critics.trained(offsets, images, opposite, labels, shares, mixes)
        shards = len(offsets)
        shown = self.fakes.expand(shards, *self.fakes.shape), self.labels.expand(shards, -1)
        gradients = self.critics.image_gradients(offsets, *shown).flatten(2)
        clip_norm = self.method.clip_norm
        gradients = gradients * (clip_norm / gradients.norm(dim=2, keepdim=True).clamp(min=clip_norm))
        return torch.cat([offsets, gradients.flatten(1)], dim=1)

    def _warm_started(
        self, offsets: Tensor, images: Tensor, fakes: Tensor, labels: Tensor, shares: Tensor, mixes: Tensor
    ) -> Tensor:
        """Train a new critic on fakes that follow its own gradients, as those of a generator would."""
        for _ in range(self.method.warm_start_rounds):
            offsets = self.critics.trained(offsets, images, fakes, labels, shares, mixes)
            gradients = self.critics.image_gradients(offsets, fakes, labels)
            norms = gradients.flatten(2).norm(dim=2).clamp(min=1e-12)[:, :, None, None, None]
            fakes = (fakes + gradients / norms).clamp(0.0, 1.0)
        return offsets
