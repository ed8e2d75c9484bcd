"""DPAF's Algorithm 1 as published: gradients of the aggregate before the noise is added, so it has no guarantee."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.base import Method, check_choices
from sfumato.methods.published.raw_records import RawRecords
from sfumato.networks.dcgan import ACTIVATIONS, Back, Front, Generator, split_of
from sfumato.networks.pixels import Shape
from sfumato.privacy import Block, Budget, Counts, Curator, Draws, Plan, SubsampledGaussian
from sfumato.privacy.gradients import Batch, Compressed, clipped_sum

_DELTA = 1e-5  # of the paper's claims
_SMALL_EPSILON = 0.1  # the paper's share for conv1 and for the aggregate; conv2 has the rest
_COUNT_SHARE = 0.01  # of a feature vector's squared norm; the sum counts its rows by it


@dataclass(frozen=True)
class DPAFPublished(Method):
    """Forward aggregation with a discriminator that is trained on the raw records (Lin et al., 2024).

    Guarantee: none. The gradients of conv2 are computed from the aggregate without noise, and conv2 and the classifier
    see all records of a batch, so the sensitivity that the paper's Theorem 6 assumes does not hold.

    Differs from the paper: SGD and Adam with the learning rates given here, which the paper does not state.

    >>> from sfumato.privacy import NoGuarantee
    >>> DPAFPublished().plan(NoGuarantee()).events
    ()
    """

    name: ClassVar[str] = "dpaf-published"
    paper: ClassVar[str] = "Lin, Hsu, Yu, Cao, Huang: DPAF (2024)"
    variants: ClassVar[Mapping[str, str]] = {
        "published": "gradients from the aggregate without noise: raw access, no guarantee"
    }
    raw_access: ClassVar[bool] = True

    split: str = "C2-C2-C1"
    width: int = 16
    feature_maps: int = 32
    label_plane: bool = True
    activation: str = "leaky relu"
    latent_dim: int = 100
    generator_width: int = 16
    iterations: int = 2000
    batch_size: int = 64
    clip_norm: float = 0.1
    compression: float = 0.9
    quantise: bool = False
    asymmetry: int = 8
    discriminator_steps: int = 1
    learning_rate: float = 2e-4
    classifier_learning_rate: float = 0.05
    claimed_epsilon: float = 10.0

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        check_choices(self, {"activation": tuple(ACTIVATIONS)})
        split_of(self.split)
        if min(self.asymmetry, self.discriminator_steps) < 1:
            raise ValueError("asymmetry and discriminator_steps are at least 1")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        """The smallest configuration, for tests and audits."""
        return cls(
            variant=variant,
            split="C2-C1-C1",
            width=4,
            feature_maps=4,
            latent_dim=4,
            generator_width=2,
            iterations=8,
            clip_norm=1e-4,
            compression=1.0,
            asymmetry=1,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """None: it reads the records themselves."""
        return ()

    def claim(self) -> dict[str, Any]:
        """The paper's ε."""
        return {"epsilon": self.claimed_epsilon, "delta": _DELTA, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> Generator:
        """The generator."""
        return Generator(shape, classes, latent_dim=self.latent_dim, width=self.generator_width)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Algorithm 1: the classifier for conv1, then the adversarial training."""
        classes, device = len(curator.classes), curator.device
        generator = self.build(curator.shape, classes).to(device)
        first, second, third = split_of(self.split)
        front = Front(
            curator.shape,
            classes,
            layers=(first, second),
            width=self.width,
            feature_maps=self.feature_maps,
            label_plane=self.label_plane,
            activation=self.activation,
            count_share=_COUNT_SHARE,
        ).to(device)
        back = Back(front.sizes[-1], classes, layers=third, width=self.width, activation=self.activation).to(device)
        records = RawRecords(curator, "DPAF differentiates the sum over a batch before the noise is added")
        if len(records):
            training = _Training(self, curator, records, generator, front, back)
            training.train_classifier()
            training.train()
        return generator, None

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """Images of the generator."""
        images: Tensor = model(labels)
        return images


class _Training:
    """The steps of Algorithm 1 on the raw records."""

    def __init__(
        self,
        method: DPAFPublished,
        curator: Curator,
        records: RawRecords,
        generator: Generator,
        front: Front,
        back: Back,
    ) -> None:
        self.method, self.curator, self.records = method, curator, records
        self.generator, self.front, self.back = generator, front, back
        self.batch_size = min(method.batch_size, len(records))
        self.small_epsilon = min(_SMALL_EPSILON, method.claimed_epsilon / 3)

    def draw(self) -> tuple[Tensor, Tensor]:
        """A batch without replacement; all records where there are no more."""
        return self.records.take(torch.randperm(len(self.records))[: self.batch_size].sort().values)

    def noise_multiplier(self, epsilon: float, *, steps: int, batches: int = 1) -> float:
        """The noise for ``epsilon`` under the paper's assumption that a record moves a sum by its own clip norm."""
        rate = min(1.0, batches * self.batch_size / len(self.records))
        event = SubsampledGaussian("claim", (Block("sum"),), sampling_rate=rate, steps=max(1, steps))
        return Plan.calibrated((event,), Budget(epsilon, _DELTA)).events[0].noise_multiplier

    def train_classifier(self) -> None:
        """Lines 2 to 5: predict a batch's class proportions from its aggregate; only conv1's gradient has noise."""
        classes, iterations = len(self.curator.classes), self.method.iterations
        rate = self.method.classifier_learning_rate
        model = copy.deepcopy(self.front)
        head = nn.Sequential(nn.Linear(model.length, 64), nn.LeakyReLU(0.2), nn.Linear(64, classes))
        head = head.to(self.curator.device)
        plain = [*model.second.parameters(), *head.parameters()]
        plain_optimizer = torch.optim.SGD(plain, lr=rate)
        noisy_optimizer = torch.optim.SGD(model.first.parameters(), lr=rate)
        noise_multiplier = self.noise_multiplier(self.small_epsilon, steps=iterations)
        for _ in self.curator.track(range(iterations), "classifier", iterations):
            images, labels = self.draw()
            model.requires_grad_(True)
            mean = model(images, labels).mean(0)
            proportions = F.one_hot(labels, classes).to(images).mean(0)
            loss = (head(mean).softmax(0) - proportions).square().mean()
            direction, *gradients = torch.autograd.grad(loss, [mean, *plain], allow_unused=True)
            for weight, gradient in zip(plain, gradients, strict=True):
                weight.grad = gradient
            model.second.requires_grad_(False)
            self._noisy_gradient("conv1 gradient", model, images, labels, direction, noise_multiplier)
            plain_optimizer.step()
            noisy_optimizer.step()
            model.zero_grad(set_to_none=True)
            head.zero_grad(set_to_none=True)
        self.front.first.load_state_dict(model.first.state_dict())
        self.front.first.requires_grad_(False)

    def train(self) -> None:
        """Lines 6 onwards: the adversarial training."""
        method, front, back, generator = self.method, self.front, self.back, self.generator
        iterations, rate = method.iterations, method.learning_rate
        aggregate_noise = self.noise_multiplier(self.small_epsilon, steps=iterations)
        conv2_epsilon, asymmetry = method.claimed_epsilon - 2 * self.small_epsilon, method.asymmetry
        conv2_noise = self.noise_multiplier(conv2_epsilon, steps=iterations // asymmetry, batches=asymmetry)
        conv2_optimizer, back_optimizer, generator_optimizer = (
            torch.optim.Adam(module.parameters(), lr=rate, betas=(0.5, 0.999))
            for module in (front.second, back, generator)
        )
        batches: list[tuple[Tensor, Tensor]] = []
        for number in self.curator.track(range(1, iterations + 1), "training", iterations):
            images, labels = self.draw()
            batches = [*batches, (images, labels)][-asymmetry:]
            with torch.no_grad():
                total = front(images, labels).sum(0)
                fake = front(generator(labels), labels).mean(0)
            noisy = self.curator.claimed_sum(
                "aggregate", total, claimed_sensitivity=1.0, noise_multiplier=aggregate_noise
            )
            self._discriminator_loss(noisy / len(images), fake).backward()
            self._step(back_optimizer)
            if number % asymmetry == 0:
                images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
                self._conv2_gradient(images, labels, fake, conv2_noise)
                self._step(conv2_optimizer)
            if number % method.discriminator_steps == 0:
                self._generator_loss(labels[: self.batch_size]).backward()
                self._step(generator_optimizer)

    def _conv2_gradient(self, images: Tensor, labels: Tensor, fake: Tensor, noise_multiplier: float) -> None:
        """The gradient of conv2 at the aggregate WITHOUT noise, which is what the paper's proof overlooks."""
        with torch.no_grad():
            mean = self.front(images, labels).mean(0)
        mean.requires_grad_(True)
        direction = torch.autograd.grad(self._discriminator_loss(mean, fake), mean)[0]
        self._noisy_gradient("conv2 gradient", self.front, images, labels, direction, noise_multiplier)

    def _noisy_gradient(
        self, name: str, front: Front, images: Tensor, labels: Tensor, direction: Tensor, noise_multiplier: float
    ) -> None:
        """Leave the noisy sum of every record's clipped Jᵀv in ``grad``; v is ``direction``."""
        method = self.method

        def loss(model: Front, rows: Tensor, classes: Tensor, random: object) -> Tensor:
            return (model(rows, classes) * direction).sum(1)

        index = torch.arange(len(images), device=images.device)
        batch = Batch(images, labels, Draws((0, 0), index, index * 0), images.new_ones(len(images), 1))
        compressed = method.compression < 1 or method.quantise
        clip = Compressed(method.clip_norm, method.compression, method.quantise) if compressed else method.clip_norm
        sums = clipped_sum(front, loss, batch, clip)
        total = torch.cat([part.flatten() for part in sums.values()])
        noisy = self.curator.claimed_sum(
            name, total, claimed_sensitivity=method.clip_norm, noise_multiplier=noise_multiplier
        )
        weights = dict(front.named_parameters())
        for key, part in zip(sums, noisy.split([part.numel() for part in sums.values()]), strict=True):
            weights[key].grad = part.view_as(weights[key]).to(weights[key]) / len(images)

    def _discriminator_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        """The discriminator's loss on a real and a fake aggregate."""
        label = torch.zeros(1, dtype=torch.int64, device=real.device)
        real_logit, fake_logit = (self.back(self.front.last_maps(mean[None]), label) for mean in (real, fake))
        return (F.softplus(-real_logit) + F.softplus(fake_logit)).sum()

    def _generator_loss(self, labels: Tensor) -> Tensor:
        """The generator's loss on single images."""
        vectors = self.front(self.generator(labels), labels)
        label = torch.zeros(len(vectors), dtype=torch.int64, device=vectors.device)
        return F.softplus(-self.back(self.front.last_maps(vectors), label)).mean()

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step, and clear the gradients that the backward pass left in other networks."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for module in (self.front, self.back):
            module.zero_grad(set_to_none=True)
