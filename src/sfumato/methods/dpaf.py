"""DPAF: a generator that is trained on noisy sums of normalised features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.base import Method, check_choices
from sfumato.methods.parts.aggregate import AggregateGame, FeatureAggregate, pretrain_on_public_images
from sfumato.networks.generators import ACTIVATIONS, Back, Front, Generator, split_of
from sfumato.networks.pixels import Shape
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.gradients import Clip, Compressed
from sfumato.training.optimisation import DivergenceGuard

_CLASSIFIER = "classifier"
_TRAIN = "training"
_AGGREGATE = "aggregate"
_GRADIENT = "gradient"
_CHOICES = {
    "activation": tuple(ACTIVATIONS),
    "conv1": ("random", "pretrained", "separate", "joint"),
    "transfer": ("discriminator", "both"),
    "generator_loss": ("single images", "mean"),
}


@dataclass(frozen=True)
class DPAF(Method):
    """Forward aggregation (Lin et al., 2024), with every gradient computed from the noisy aggregate.

    Guarantee: Poisson-subsampled Gaussian steps, under adding or removing one unit. In each step the feature vectors
    of a batch, of norm at most 1, are summed in the slice of their class. Where ``gradient_share`` > 0, a second block
    over the same batch is the sum of clipped per-record gradients Jᵀv, where v was computed from the answer of the
    first block. The two blocks are one event: 1/σ² = 1/σ_a² + 1/σ_g².

    Differs from the paper: by default the features are random and fixed, the discriminator is replaced by matching
    the mean features of each class, and thumbnails and second moments are part of the features; ``as_in_the_paper``
    has the paper's adversarial training. The paper's algorithm is ``dpaf-published``.

    >>> from sfumato.privacy import Budget
    >>> plan = DPAF(gradient_share=0.5, steps=9).plan(Budget(epsilon=1, delta=1e-5))
    >>> [block.name for block in plan.events[0].blocks]
    ['aggregate', 'gradient']
    """

    name: ClassVar[str] = "dpaf"
    paper: ClassVar[str] = "Lin, Hsu, Yu, Cao, Huang: DPAF (2024)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "every gradient is computed from the noisy aggregate; at ε = 1 a training may fail, see its page"
    }
    paper_settings: ClassVar[Mapping[str, Any]] = {
        "split": "C2-C2-C1",
        "feature_maps": 8,
        "feature_layers": 1,
        "thumbnail_size": 0,
        "second_moment_size": 0,
        "sampling_rate": 0.1,
        "steps": 1000,
        "gradient_share": 0.5,
        "compression": 0.9,
        "matching_weight": 0.0,
        "adversarial_weight": 1.0,
        "asymmetry": 8,
        "aggregate_decay": 0.9,
        "iterations": 0,
    }

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
    # Queries
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
    # Training on the answers
    matching_weight: float = 1.0
    adversarial_weight: float = 0.0
    generator_loss: str = "mean"
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, _CHOICES)
        if not 0 <= self.gradient_share < 1:
            raise ValueError(f"gradient_share must lie in [0, 1), not {self.gradient_share:g}")
        if min(self.matching_weight, self.adversarial_weight) < 0 or not self.matching_weight + self.adversarial_weight:
            raise ValueError("matching_weight and adversarial_weight must not be negative, nor both 0")
        if not (0 < self.aggregate_decay <= 1 and 0 < self.count_share < 1 and 0 < self.second_moment_share < 1):
            raise ValueError("aggregate_decay must lie in (0, 1], count_share and second_moment_share in (0, 1)")
        if min(self.asymmetry, self.discriminator_steps) < 1 or self.fakes_per_class < 2:
            raise ValueError("asymmetry and discriminator_steps are at least 1, and fakes_per_class is at least 2")
        first, second, _ = split_of(self.split)
        if self.gradient_share and self.conv1 in ("random", "pretrained") and not second:
            raise ValueError(f"the split {self.split} has no conv2 to train; gradient_share must be 0")
        if self.conv1 in ("separate", "joint") and not (self.gradient_share and first):
            raise ValueError(f"conv1 = {self.conv1!r} is trained by gradients: it needs layers and gradient_share > 0")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(
            variant=variant,
            width=2,
            feature_maps=2,
            feature_layers=1,
            thumbnail_size=2,
            second_moment_size=2,
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
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """The aggregates, with the front's gradients and those of a classifier where wanted."""
        share = self.gradient_share
        blocks = [Block(_AGGREGATE, 1.0 / math.sqrt(1.0 - share))]
        if share:
            blocks.append(Block(_GRADIENT, 1.0 / math.sqrt(share)))
        train = SubsampledGaussian(_TRAIN, tuple(blocks), sampling_rate=self.sampling_rate, steps=self.steps)
        if self.conv1 != "pretrained":
            return (train,)
        gradient = (Block(_GRADIENT, self.classifier_noise),)
        rate, steps = self.classifier_sampling_rate, self.classifier_steps
        return SubsampledGaussian(_CLASSIFIER, gradient, sampling_rate=rate, steps=steps), train

    def build(self, shape: Shape, classes: int) -> Generator:
        return Generator(shape, classes, latent_dim=self.latent_dim, width=self.generator_width)

    def front(self, shape: Shape, classes: int) -> Front:
        """The discriminator's layers in front of the sum."""
        first, second, _ = split_of(self.split)
        return Front(
            shape,
            classes,
            layers=(first, second),
            width=self.width,
            feature_maps=self.feature_maps,
            feature_layers=self.feature_layers,
            thumbnail_size=self.thumbnail_size,
            second_moment_size=self.second_moment_size,
            second_moment_share=self.second_moment_share,
            label_plane=self.label_plane,
            activation=self.activation,
            count_share=self.count_share,
        )

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        classes, device = len(curator.classes), curator.device
        generator = self.build(curator.shape, classes).to(device)
        front = self.front(curator.shape, classes).to(device)
        layers = split_of(self.split)[2]
        back = Back(front.sizes[-1], classes, layers=layers, width=self.width, activation=self.activation).to(device)
        if self.public:
            start = generator if self.transfer == "both" else None
            batch = self.fakes_per_class * classes
            pretrain_on_public_images(
                curator, self.public, front, start, batch=batch, iterations=self.public_iterations
            )
        if self.conv1 == "pretrained":
            self._train_classifier(curator, front)
        front.requires_grad_(self.gradient_share > 0)
        if self.conv1 in ("random", "pretrained"):
            front.first.requires_grad_(False)
        return generator, self._train(curator, generator, front, back)

    def gradient_clip(self) -> Clip:
        """The clip norm of conv2, of conv1 and conv2 each, or of both together."""
        groups = {"first": self.clip_norm, "second": self.clip_norm}
        clip_norm: float | dict[str, float] = groups if self.conv1 == "separate" else self.clip_norm
        if self.compression < 1 or self.quantise:
            return Compressed(clip_norm, self.compression, self.quantise)
        return clip_norm

    def _train(self, curator: Curator, generator: Generator, front: Front, back: Back) -> Counts:
        classes, decay = len(curator.classes), self.aggregate_decay
        aggregate = FeatureAggregate(classes, front.length, count_value=front.count_value, decay=decay)
        game = AggregateGame(self, generator, front, back, aggregate.to(curator.device))
        noise_multiplier = curator.plan.event(_TRAIN).blocks[0].noise_multiplier

        def features(images: Tensor, labels: Tensor, random: object) -> Tensor:
            vectors: Tensor = front(images, labels)
            return vectors

        for step in curator.steps(_TRAIN, keep=game.keep):
            answer = step.noisy_sum(_AGGREGATE, features, clip_norm=1.0, by_class=True)
            aggregate.add(answer, sampling_rate=self.sampling_rate)
            game.target = aggregate.means
            game.train_discriminator(step, answer, noise_multiplier)
            if (step.index + 1) % self.discriminator_steps == 0:
                game.train_generator((step.index + 1) // self.discriminator_steps - 1)
        game.target = aggregate.means
        # The answers are released, so training on them can go on without cost. An adversarial loss may rise.
        guard = None if self.adversarial_weight else DivergenceGuard(generator, game.generator_optimizer)
        keep = game.keep if guard is None else {**game.keep, "guard": guard}
        for number in curator.track(range(self.iterations), "generator", self.iterations, keep=keep):
            game.train_generator(self.steps // self.discriminator_steps + number, guard)
        return aggregate.counts

    def _train_classifier(self, curator: Curator, front: Front) -> None:
        """Conv1, and initial weights of conv2, from a classifier that is trained by DP-SGD."""
        model = _Classifier(front, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.classifier_learning_rate)

        def loss(classifier: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
            return F.cross_entropy(classifier(images), labels, reduction="none")

        for step in curator.steps(_CLASSIFIER, keep={"classifier": model, "classifier optimizer": optimizer}):
            step.noisy_gradient(_GRADIENT, model, loss, clip_norm=self.clip_norm).apply(optimizer)


class _Classifier(nn.Module):
    """The front and a linear layer. It must not see the label, so every image gets the plane of the first class."""

    def __init__(self, front: Front, classes: int) -> None:
        super().__init__()
        self.front = front
        self.linear = nn.Linear(math.prod(front.sizes[-1]), classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.front.layers(images, torch.zeros(len(images), dtype=torch.int64, device=images.device))[-1]
        logits: Tensor = self.linear(maps.flatten(1))
        return logits
