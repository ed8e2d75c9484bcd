"""DPAF: a generator that learns from noisy sums of normalised features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.base import Method, Shape
from sfumato.methods.parts.feature_aggregate import Aggregate, distance
from sfumato.methods.parts.public_pretraining import start_from_public
from sfumato.methods.published.dpaf import as_published
from sfumato.networks.dcgan import ACTIVATIONS, Back, Front, Generator, split_of
from sfumato.privacy import Block, Counts, Curator, Draws, NoisyGradient, Step, SubsampledGaussian
from sfumato.privacy.gradients import Batch, Clip, Compressed, clipped_sum
from sfumato.training.divergence_guard import DivergenceGuard

_CLASSIFIER = "classifier"
_TRAIN = "training"
_AGGREGATE = "aggregate"
_GRADIENT = "gradient"


@dataclass(frozen=True)
class DPAF(Method):
    """Forward aggregation (Lin et al., 2024), with every gradient taken from the noisy aggregate.

    Guarantee: Poisson-subsampled Gaussian steps. In each, the batch's feature vectors of norm at most 1 are summed in
    the slice of their class; where ``gradient_share`` > 0, a second block of the same batch is the sum of clipped
    per-record gradients Jᵀv, and v was computed from the first block's answer. Both blocks are one entry:
    1/σ² = 1/σ_a² + 1/σ_g².
    Differs from the paper: see docs/methods/dpaf.md.

    >>> [block.name for block in DPAF(gradient_share=0.5, steps=9).plan(Budget(epsilon=1, delta=1e-5)).events[0].blocks]
    ['aggregate', 'gradient']
    """

    name: ClassVar[str] = "dpaf"
    paper: ClassVar[str] = "Lin, Hsu, Yu, Cao, Huang: DPAF (2024)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "everything is learned from the noisy aggregate",
        "published": "gradients from the aggregate without noise, as printed: raw access, no guarantee",
    }
    raw_variants: ClassVar[frozenset[str]] = frozenset({"published"})

    # Networks
    split: str = "C2-C1-C1"
    width: int = 16
    feature_maps: int = 32
    feature_layers: int = 3
    thumbnail_size: int = 16
    second_moment_size: int = 8
    second_moment_share: float = 0.5
    label_plane: bool = True
    activation: str = "leaky relu"
    latent_dim: int = 100
    generator_width: int = 16
    # Questions
    sampling_rate: float = 1.0
    steps: int = 1
    gradient_share: float = 0.0
    count_share: float = 0.01
    clip_norm: float = 0.01
    compression: float = 1.0
    quantise: bool = False
    conv1: str = "random"
    classifier_sampling_rate: float = 0.1
    classifier_steps: int = 100
    classifier_noise: float = 4.0
    classifier_learning_rate: float = 0.002
    # Learning from the answers
    matching_weight: float = 1.0
    adversarial_weight: float = 0.0
    asymmetry: int = 1
    discriminator_steps: int = 1
    aggregate_decay: float = 1.0
    iterations: int = 1500
    fakes_per_class: int = 64
    learning_rate: float = 0.002
    discriminator_learning_rate: float = 0.001
    public: str = ""
    public_iterations: int = 500
    transfer: str = "discriminator"
    # As published
    published_iterations: int = 2000
    published_batch_size: int = 64
    claimed_epsilon: float = 10.0
    published_clip_norm: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, allowed in (
            ("activation", tuple(ACTIVATIONS)),
            ("conv1", ("random", "pretrained", "separate", "joint")),
            ("transfer", ("discriminator", "both")),
        ):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} must be one of {', '.join(allowed)}, not {getattr(self, field)!r}")
        if not 0 <= self.gradient_share < 1:
            raise ValueError(f"gradient_share must lie in [0, 1), not {self.gradient_share:g}")
        if (
            self.matching_weight < 0
            or self.adversarial_weight < 0
            or self.matching_weight + self.adversarial_weight == 0
        ):
            raise ValueError("matching_weight and adversarial_weight must not be negative, nor both 0")
        if not (0 < self.aggregate_decay <= 1 and 0 < self.count_share < 1 and 0 < self.second_moment_share < 1):
            raise ValueError("aggregate_decay must lie in (0, 1], count_share and second_moment_share in (0, 1)")
        if min(self.asymmetry, self.discriminator_steps) < 1 or self.fakes_per_class < 2:
            raise ValueError("asymmetry and discriminator_steps are at least 1, and fakes_per_class is at least 2")
        first, second, _ = split_of(self.split)
        if self.gradient_share and self.conv1 in ("random", "pretrained") and not second:
            raise ValueError(f"the split {self.split} has no conv2 that could learn; gradient_share must be 0")
        if self.conv1 in ("separate", "joint") and not (self.gradient_share and first):
            raise ValueError(f"conv1 = {self.conv1!r} learns from gradients: it needs layers and gradient_share > 0")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        width, coarse, pairs = (4, 0, 0) if variant == "published" else (2, 2, 2)
        return cls(
            variant=variant,
            width=width,
            feature_maps=width,
            feature_layers=1,
            thumbnail_size=coarse,
            second_moment_size=pairs,
            latent_dim=4,
            generator_width=2,
            sampling_rate=0.6,
            steps=2,
            gradient_share=0.5,
            clip_norm=1e-4,
            adversarial_weight=1.0,
            iterations=2,
            fakes_per_class=4,
            public_iterations=2,
            published_iterations=8,
            published_batch_size=64,
            published_clip_norm=1e-4,
        )

    @classmethod
    def as_in_the_paper(cls, variant: str = "certified") -> Self:
        """The paper's game, at settings under which its signal survives the noise: C2-C2-C1, μ = 8, 90 % kept."""
        return cls(
            variant=variant,
            split="C2-C2-C1",
            feature_maps=8,
            feature_layers=1,
            thumbnail_size=0,
            second_moment_size=0,
            sampling_rate=0.1,
            steps=1000,
            gradient_share=0.5,
            compression=0.9,
            matching_weight=0.0,
            adversarial_weight=1.0,
            asymmetry=8,
            aggregate_decay=0.9,
            iterations=0,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        if self.variant == "published":
            return ()
        share = self.gradient_share
        blocks = [Block(_AGGREGATE, 1.0 / math.sqrt(1.0 - share))]
        if share:
            blocks.append(Block(_GRADIENT, 1.0 / math.sqrt(share)))
        train = SubsampledGaussian(_TRAIN, tuple(blocks), sampling_rate=self.sampling_rate, steps=self.steps)
        if self.conv1 != "pretrained":
            return (train,)
        gradient = Block(_GRADIENT, self.classifier_noise)
        return (
            SubsampledGaussian(
                _CLASSIFIER, (gradient,), sampling_rate=self.classifier_sampling_rate, steps=self.classifier_steps
            ),
            train,
        )

    def claim(self) -> dict[str, Any] | None:
        if self.variant != "published":
            return None
        return {"epsilon": self.claimed_epsilon, "delta": 1e-5, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> Generator:
        return Generator(shape, classes, code=self.latent_dim, width=self.generator_width)

    def front(self, shape: Shape, classes: int) -> Front:
        first, second, _ = split_of(self.split)
        return Front(
            shape,
            classes,
            layers=(first, second),
            width=self.width,
            maps=self.feature_maps,
            taps=self.feature_layers,
            coarse=self.thumbnail_size,
            pairs=self.second_moment_size,
            pair_share=self.second_moment_share,
            labelled=self.label_plane,
            activation=self.activation,
            count_share=self.count_share,
        )

    def back(self, front: Front, classes: int) -> Back:
        layers = split_of(self.split)[2]
        return Back(front.sizes[-1], classes, layers=layers, width=self.width, activation=self.activation)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        classes, device = len(curator.classes), curator.device
        generator = self.build(curator.shape, classes).to(device)
        front = self.front(curator.shape, classes).to(device)
        back = self.back(front, classes).to(device)
        if self.public:
            start_from_public(
                self.public,
                front,
                generator if self.transfer == "both" else None,
                batch=self.fakes_per_class * classes,
                iterations=self.public_iterations,
            )
        if self.variant == "published":
            as_published(
                curator,
                generator,
                front,
                back,
                iterations=self.published_iterations,
                batch=self.published_batch_size,
                clip=self._compressed(self.published_clip_norm),
                asymmetry=self.asymmetry,
                critic=self.discriminator_steps,
                epsilon=self.claimed_epsilon,
            )
            return generator, None
        return generator, self._learn(curator, generator, front, back)

    def gradient_clip(self) -> Clip:
        """For conv2 alone, for conv1 and conv2 each, or for both together."""
        if self.conv1 == "separate":
            return self._compressed({"first": self.clip_norm, "second": self.clip_norm})
        return self._compressed(self.clip_norm)

    def _compressed(self, clip: float | dict[str, float]) -> Clip:
        return Compressed(clip, self.compression, self.quantise) if self.compression < 1 or self.quantise else clip

    def _learn(self, curator: Curator, generator: Generator, front: Front, back: Back) -> Counts:
        if self.conv1 == "pretrained":
            self._classify(curator, front)
        front.requires_grad_(self.gradient_share > 0)
        if self.conv1 in ("random", "pretrained"):
            front.first.requires_grad_(False)
        aggregate = Aggregate(len(curator.classes), front.length, count=front.count, decay=self.aggregate_decay)
        game = _Game(self, generator, front, back, aggregate.to(curator.device))
        noise = curator.plan.event(_TRAIN).blocks[0].noise_multiplier

        def features(images: Tensor, labels: Tensor, random: object) -> Tensor:
            return front(images, labels)

        for step in curator.steps(_TRAIN, keep=game.keep):
            answer = step.noisy_sum(_AGGREGATE, features, clip_norm=1.0, by_class=True)
            aggregate.add(answer, rate=self.sampling_rate)
            game.target = aggregate.means
            game.learn(step, answer, noise)
            if (step.index + 1) % self.discriminator_steps == 0:
                game.improve((step.index + 1) // self.discriminator_steps - 1)
        game.target = aggregate.means
        # The answers stay; learning from them can go on for as long as one likes.
        rescue = (
            None if self.adversarial_weight else DivergenceGuard(generator, game.generator_optimizer)
        )  # a game's loss may rise
        for number in curator.track(range(self.iterations), "generator", self.iterations):
            game.improve(self.steps // self.discriminator_steps + number, rescue)
        return aggregate.counts

    def _classify(self, curator: Curator, front: Front) -> None:
        """Conv1 and a start for conv2 from an ordinary classifier by DP-SGD, each record's loss its own."""
        model = _Classifier(front, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.classifier_learning_rate)

        def loss(classifier: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
            return F.cross_entropy(classifier(images), labels, reduction="none")

        for step in curator.steps(_CLASSIFIER, keep={"classifier": model, "classifier optimizer": optimizer}):
            step.noisy_gradient(_GRADIENT, model, loss, clip_norm=self.clip_norm).apply(optimizer)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        images: Tensor = model(labels)
        return images


class _Classifier(nn.Module):
    """The front with a linear layer behind it. It is not told the label: every image gets the first class's plane."""

    def __init__(self, front: Front, classes: int) -> None:
        super().__init__()
        self.front = front
        self.linear = nn.Linear(math.prod(front.sizes[-1]), classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.front.layers(images, torch.zeros(len(images), dtype=torch.int64, device=images.device))[-1]
        return self.linear(maps.flatten(1))


def pull(front: Front, images: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
    """⟨v, s_i⟩ for each row i with the v of its class: its gradient is Jᵀv, and v depends on no single row."""
    return (front(images, labels) * direction[labels]).sum(1)


class _Game:
    """Generator against discriminator, on answers and fakes alone."""

    def __init__(self, method: DPAF, generator: Generator, front: Front, back: Back, aggregate: Aggregate) -> None:
        self.method, self.generator, self.front, self.back, self.aggregate = method, generator, front, back, aggregate
        self.classes = len(aggregate.get_buffer("total"))
        device = aggregate.get_buffer("total").device
        self.labels = torch.arange(self.classes, device=device).repeat_interleave(method.fakes_per_class)
        self.generator_optimizer = torch.optim.Adam(generator.parameters(), lr=method.learning_rate, betas=(0.5, 0.99))
        rate = method.discriminator_learning_rate
        self.back_optimizer = torch.optim.Adam(back.parameters(), lr=rate, betas=(0.5, 0.99))
        learning = [p for p in front.parameters() if p.requires_grad]
        self.front_optimizer = torch.optim.Adam(learning, lr=rate, betas=(0.5, 0.99)) if learning else None
        self.waiting: NoisyGradient | None = None
        self.target = aggregate.means

    @property
    def keep(self) -> dict[str, Any]:
        kept = {
            "generator": self.generator,
            "front": self.front,
            "back": self.back,
            "aggregate": self.aggregate,
            "generator optimizer": self.generator_optimizer,
            "back optimizer": self.back_optimizer,
        }
        return kept | ({"front optimizer": self.front_optimizer} if self.front_optimizer else {})

    def learn(self, step: Step, answer: Tensor, noise: float) -> None:
        """The discriminator's part of a step: behind the sum from the answer, in front of it by one more block."""
        method = self.method
        if not method.adversarial_weight and self.front_optimizer is None:
            return
        expected = method.sampling_rate * self.aggregate.sizes[:, None]
        with torch.no_grad():
            fakes = self.generator(self.labels)
            vectors = self.front(fakes, self.labels).view(self.classes, -1, self.front.length)
        # The fakes' sum gets noise of the law that the real one has: nothing must tell them apart but the features.
        fake = vectors.mean(1) + noise / expected * torch.randn_like(answer)
        real = answer / expected
        toward_real, toward_fake = torch.zeros_like(real), torch.zeros_like(real)
        if method.adversarial_weight:
            real_leaf, fake_leaf = real.requires_grad_(True), fake.requires_grad_(True)
            each = self.labels.view(self.classes, -1)[:, 0]
            accepted = self.back(self.front.last_maps(real_leaf), each)
            refused = self.back(self.front.last_maps(fake_leaf), each)
            loss = F.softplus(-accepted).mean() + F.softplus(refused).mean()
            weights = list(self.back.parameters())
            slopes = torch.autograd.grad(method.adversarial_weight * loss, [real_leaf, fake_leaf, *weights])
            toward_real, toward_fake = slopes[:2]
            _apply(self.back_optimizer, weights, slopes[2:])
        if self.front_optimizer is None:
            return
        if method.matching_weight:
            # The front learns features in which the two differ: the loss is −|real − fake|².
            apart = 2.0 * method.matching_weight * (self.target - vectors.mean(1))
            toward_real, toward_fake = toward_real - apart, toward_fake + apart
        size = torch.sqrt(toward_real.square().sum() + toward_fake.square().sum()).clamp(min=1e-30)
        self._turn(step, toward_real / size, toward_fake / size, fakes)

    def _turn(self, step: Step, toward_real: Tensor, toward_fake: Tensor, fakes: Tensor) -> None:
        """The front's step: each record's Jᵀv clipped and summed with noise, the fakes' clipped alike without."""
        method, clip = self.method, self.method.gradient_clip()

        def real_loss(front: Front, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return pull(front, images, labels, toward_real)

        def fake_loss(front: Front, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return pull(front, images, labels, toward_fake)

        gradient = step.noisy_gradient(_GRADIENT, self.front, real_loss, clip_norm=clip)
        rows = torch.arange(len(fakes), device=fakes.device)
        batch = Batch(fakes, self.labels, Draws((0, 0), rows, rows * 0), fakes.new_ones(len(fakes), 1))
        parts = clipped_sum(self.front, fake_loss, batch, clip)
        share = method.sampling_rate * self.aggregate.counts.total / len(fakes)
        gradient = gradient + NoisyGradient.of(self.front, {name: share * parts[name] for name in gradient.names})
        self.waiting = gradient if self.waiting is None else self.waiting + gradient
        if (step.index + 1) % method.asymmetry == 0 and self.front_optimizer is not None:
            # A sum of noisy gradients; one noise for a union of batches would not do, a record may be in several.
            (self.waiting / method.clip_norm).apply(self.front_optimizer)
            self.waiting = None

    def improve(self, number: int, rescue: DivergenceGuard | None = None) -> None:
        """The generator's step: each fake by itself before the judge, and their means against the aggregate."""
        method = self.method
        done = number / max(1, method.steps // method.discriminator_steps + method.iterations)
        # A gentle start, then half a cosine: noise in the gradients weighs less at the end.
        share = min(1.0, 20.0 * done + 0.05) * 0.5 * (1.0 + math.cos(math.pi * done))
        for group in self.generator_optimizer.param_groups:
            group["lr"] = share * method.learning_rate * (rescue.rate if rescue else 1.0)
        vectors = self.front(self.generator(self.labels), self.labels)
        loss = vectors.new_zeros(())
        if method.matching_weight:
            grouped = vectors.view(self.classes, -1, self.front.length)
            loss = method.matching_weight * distance(grouped, self.target)
        if method.adversarial_weight:
            believed = self.back(self.front.last_maps(vectors), self.labels)
            loss = loss + method.adversarial_weight * F.softplus(-believed).mean()
        if rescue is not None and rescue.needed(loss):
            return
        weights = list(self.generator.parameters())
        _apply(self.generator_optimizer, weights, torch.autograd.grad(loss, weights))


def _apply(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], slopes: tuple[Tensor, ...]) -> None:
    for weight, slope in zip(weights, slopes, strict=True):
        weight.grad = slope
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
