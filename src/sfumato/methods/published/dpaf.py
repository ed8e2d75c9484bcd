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
from sfumato.methods.published import RawRecords
from sfumato.networks.generators import ACTIVATIONS, Back, Front, Generator, split_of
from sfumato.networks.pixels import Shape, one_hot
from sfumato.privacy import Block, Budget, Counts, Curator, Draws, Plan, SubsampledGaussian
from sfumato.privacy.gradients import Batch, Compressed, clipped_sum
from sfumato.training.optimisation import set_learning_rate, warmup_cosine_decay

_DELTA = 1e-5  # of the paper's claims
_COUNT_SHARE = 0.01  # of a feature vector's squared norm; the sum counts its rows by it
_BETAS = (0.5, 0.99)
_CHOICES = {
    "activation": tuple(ACTIVATIONS),
    "conv1": ("classifier", "random"),
    "batches": ("mixed", "one class"),
    "generator_loss": ("single images", "mean"),
}


@dataclass(frozen=True)
class DPAFPublished(Method):
    """Forward aggregation with a discriminator that is trained on the raw records (Lin et al., 2024).

    Guarantee: none. The gradients of conv2 are computed from the aggregate without noise, and conv2 and the classifier
    see all records of a batch, so the sensitivity that the paper's Theorem 6 assumes does not hold.

    Differs from the paper: Adam, with learning rates that the paper does not state. With ``generator_loss = "mean"``
    line 15 asks the discriminator about the mean of the generated images, which is what it is trained on; the paper
    asks it about single images. With ``batches = "one class"`` every batch and so every aggregate is of one class.

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
    paper_settings: ClassVar[Mapping[str, Any]] = {
        "split": "C2-C2-C1",
        "batch_size": 64,
        "compression": 0.9,
        "asymmetry": 8,
        "conv1": "classifier",
        "batches": "mixed",
        "generator_loss": "single images",
        "claimed_epsilon": 10.0,
    }

    split: str = "C2-C2-C1"
    width: int = 16
    feature_maps: int = 32
    label_plane: bool = True
    activation: str = "leaky relu"
    latent_dim: int = 100
    generator_width: int = 16
    conv1: str = "classifier"
    batches: str = "mixed"
    generator_loss: str = "single images"
    iterations: int = 2000
    batch_size: int = 64
    clip_norm: float = 0.1
    compression: float = 0.9
    quantise: bool = False
    asymmetry: int = 8
    discriminator_steps: int = 1
    learning_rate: float = 0.002
    discriminator_learning_rate: float = 0.001
    classifier_learning_rate: float = 0.001
    claimed_epsilon: float = 10.0
    classifier_epsilon: float = 0.1
    aggregate_epsilon: float = 0.1
    noise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, _CHOICES)
        split_of(self.split)
        if min(self.asymmetry, self.discriminator_steps) < 1:
            raise ValueError("asymmetry and discriminator_steps are at least 1")
        if self.claimed_epsilon <= self.classifier_share + self.aggregate_epsilon:
            raise ValueError(
                f"of a claimed ε of {self.claimed_epsilon:g} nothing is left for conv2: classifier_epsilon and "
                "aggregate_epsilon must be less"
            )

    @property
    def classifier_share(self) -> float:
        """ε₁, which a random conv1 does not need."""
        return self.classifier_epsilon if self.conv1 == "classifier" else 0.0

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
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
        return ()

    def claim(self) -> dict[str, Any] | None:
        """The paper's ε; none without noise."""
        if not self.noise:
            return None
        return {"epsilon": self.claimed_epsilon, "delta": _DELTA, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> Generator:
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
            if self.conv1 == "classifier":
                training.train_classifier()
            training.train()
        return generator, None


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
        self.classes = len(curator.classes)
        self.batch_size = min(method.batch_size, len(records))
        front.first.requires_grad_(False)

    def draw(self, *, one_class: bool = False) -> tuple[Tensor, Tensor]:
        """A batch without replacement, of all records or of a random class; all of them where there are no more."""
        rows = torch.arange(len(self.records))
        if one_class:
            # Of the classes that occur: an empty batch has no mean.
            label = self.records.labels[torch.randint(len(self.records), ())]
            rows = rows[self.records.labels == label]
        return self.records.take(rows[torch.randperm(len(rows))[: self.batch_size].sort().values])

    def noise_multiplier(self, epsilon: float, *, steps: int, batches: int = 1) -> float:
        """The noise for ``epsilon`` under the paper's assumption that a record moves a sum by its own clip norm."""
        if not self.method.noise:
            return 0.0
        rate = min(1.0, batches * self.batch_size / len(self.records))
        event = SubsampledGaussian("claim", (Block("sum"),), sampling_rate=rate, steps=max(1, steps))
        return Plan.calibrated((event,), Budget(epsilon, _DELTA)).events[0].noise_multiplier

    def train_classifier(self) -> None:
        """Lines 2 to 5: predict a batch's class shares from its aggregate; only conv1's gradient has noise."""
        method, iterations, rate = self.method, self.method.iterations, self.method.classifier_learning_rate
        model = copy.deepcopy(self.front)
        layers = split_of(method.split)[2]
        size, width = model.sizes[-1], method.width
        head = Back(size, self.classes, layers=layers, width=width, activation=method.activation, outputs=self.classes)
        head = head.to(self.curator.device)
        plain = [*model.second.parameters(), *head.parameters()]
        plain_optimizer = torch.optim.Adam(plain, lr=rate)
        noisy_optimizer = torch.optim.Adam(model.first.parameters(), lr=rate)
        noise_multiplier = self.noise_multiplier(method.classifier_epsilon, steps=iterations)
        for _ in self.curator.track(range(iterations), "classifier", iterations):
            images, labels = self.draw()
            # It must not read the labels in the planes, so every image gets the plane of the first class.
            hidden, shares = torch.zeros_like(labels), one_hot(labels, self.classes, images).mean(0)
            model.requires_grad_(True)
            mean = model(images, hidden).mean(0)
            found = head(model.last_maps(mean[None]), torch.zeros_like(shares)[None])[0].softmax(0)
            loss = (found - shares).square().mean()
            direction, *gradients = torch.autograd.grad(loss, [mean, *plain], allow_unused=True)
            for weight, gradient in zip(plain, gradients, strict=True):
                weight.grad = gradient
            model.second.requires_grad_(False)
            sums = self._sums(model, images, hidden, direction)
            self._leave_gradient(model, "conv1 gradient", sums, noise_multiplier, rows=len(images))
            plain_optimizer.step()
            noisy_optimizer.step()
            model.zero_grad(set_to_none=True)
            head.zero_grad(set_to_none=True)
        self.front.first.load_state_dict(model.first.state_dict())

    def train(self) -> None:
        """Lines 6 onwards: the adversarial training."""
        method, generator = self.method, self.generator
        iterations, asymmetry = method.iterations, method.asymmetry
        self.aggregate_noise = self.noise_multiplier(method.aggregate_epsilon, steps=iterations)
        conv2_epsilon = method.claimed_epsilon - method.classifier_share - method.aggregate_epsilon
        conv2_noise = self.noise_multiplier(conv2_epsilon, steps=iterations // asymmetry, batches=asymmetry)
        trained = {self.back: method.discriminator_learning_rate, generator: method.learning_rate}
        if split_of(method.split)[1]:
            trained[self.front.second] = method.discriminator_learning_rate
        optimizers = {module: torch.optim.Adam(module.parameters(), lr=1.0, betas=_BETAS) for module in trained}
        batches: list[tuple[Tensor, Tensor]] = []
        for number in self.curator.track(range(1, iterations + 1), "training", iterations):
            for module, rate in trained.items():
                set_learning_rate(optimizers[module], rate * warmup_cosine_decay((number - 1) / iterations))
            images, labels = self.draw(one_class=method.batches == "one class")
            batches = [*batches, (images, labels)][-asymmetry:]
            shares = self._shares(labels)
            with torch.no_grad():
                total = self.front(images, labels).sum(0)
                fake = self.front(generator(labels), labels).mean(0)
            real = self._noisy("aggregate", total, 1.0, self.aggregate_noise) / len(images)
            self._discriminator_loss(real, self._with_noise(fake, len(labels)), shares).backward()
            self._step(optimizers[self.back])
            if number % asymmetry == 0 and self.front.second in optimizers:
                self._conv2_gradient(batches, conv2_noise)
                self._step(optimizers[self.front.second])
            if number % method.discriminator_steps == 0:
                self._generator_loss(labels, shares).backward()
                self._step(optimizers[generator])

    def _shares(self, labels: Tensor) -> Tensor:
        return one_hot(labels, self.classes, self.back.plane.weight).mean(0, keepdim=True)

    def _noisy(self, name: str, total: Tensor, sensitivity: float, noise_multiplier: float) -> Tensor:
        if not noise_multiplier:
            return total
        return self.curator.claimed_sum(
            name, total, claimed_sensitivity=sensitivity, noise_multiplier=noise_multiplier
        ).to(total)

    def _with_noise(self, mean: Tensor, rows: int) -> Tensor:
        """The fake aggregate with DPAGG's noise too, so that noise does not tell the two apart."""
        return mean + self.aggregate_noise / rows * torch.randn_like(mean)

    def _conv2_gradient(self, batches: list[tuple[Tensor, Tensor]], noise_multiplier: float) -> None:
        """The gradient of conv2 at the aggregates WITHOUT noise, which is what the paper's proof overlooks."""
        sums, rows = None, 0
        own: list[dict[str, Tensor]] = []
        for images, labels in batches:
            with torch.no_grad():
                fakes = self.generator(labels)
                real, fake = (self.front(shown, labels).mean(0) for shown in (images, fakes))
            loss = self._discriminator_loss(real.requires_grad_(True), fake.requires_grad_(True), self._shares(labels))
            directions = torch.autograd.grad(loss, [real, fake])
            # Of length one: what a record contributes does not depend on how sure the discriminator is.
            length = torch.cat(directions).norm().clamp(min=1e-30)
            found = self._sums(self.front, images, labels, directions[0] / length)
            sums = found if sums is None else {name: sums[name] + found[name] for name in sums}
            own.append(self._sums(self.front, fakes, labels, directions[1] / length))
            rows += len(images)
        assert sums is not None
        public = {name: torch.stack([one[name] for one in own]).sum(0) for name in sums}
        self._leave_gradient(self.front, "conv2 gradient", sums, noise_multiplier, rows=rows, public=public)

    def _sums(self, front: Front, images: Tensor, labels: Tensor, direction: Tensor) -> dict[str, Tensor]:
        """The sum of every record's clipped Jᵀv; v is ``direction``."""
        method = self.method

        def loss(model: Front, rows: Tensor, classes: Tensor, random: object) -> Tensor:
            return (model(rows, classes) * direction).sum(1)

        index = torch.arange(len(images), device=images.device)
        batch = Batch(images, labels, Draws((0, 0), index, index * 0), images.new_ones(len(images), 1))
        compressed = method.compression < 1 or method.quantise
        clip = Compressed(method.clip_norm, method.compression, method.quantise) if compressed else method.clip_norm
        return dict(clipped_sum(front, loss, batch, clip))

    def _leave_gradient(
        self,
        front: Front,
        name: str,
        sums: Mapping[str, Tensor],
        noise_multiplier: float,
        *,
        rows: int,
        public: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Leave the noisy sums, and those of generated images, which need no noise, in ``grad``."""
        total = torch.cat([part.flatten() for part in sums.values()])
        noisy = self._noisy(name, total, self.method.clip_norm, noise_multiplier)
        weights = dict(front.named_parameters())
        for key, part in zip(sums, noisy.split([part.numel() for part in sums.values()]), strict=True):
            gradient = part.view_as(weights[key])
            if public is not None:
                gradient = gradient + public[key]
            weights[key].grad = gradient.to(weights[key]) / rows

    def _logit(self, mean: Tensor, shares: Tensor) -> Tensor:
        logits: Tensor = self.back(self.front.last_maps(mean), shares)
        return logits

    def _discriminator_loss(self, real: Tensor, fake: Tensor, shares: Tensor) -> Tensor:
        real_logit, fake_logit = (self._logit(mean[None], shares) for mean in (real, fake))
        return (F.softplus(-real_logit) + F.softplus(fake_logit)).sum()

    def _generator_loss(self, labels: Tensor, shares: Tensor) -> Tensor:
        """Line 15: the generator's loss on single images, or on their mean."""
        vectors = self.front(self.generator(labels), labels)
        if self.method.generator_loss == "mean":
            return F.softplus(-self._logit(self._with_noise(vectors.mean(0), len(labels))[None], shares)).sum()
        return F.softplus(-self._logit(vectors, self._own_shares(labels))).mean()

    def _own_shares(self, labels: Tensor) -> Tensor:
        return one_hot(labels, self.classes, self.back.plane.weight)

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Step, and clear the gradients that the backward pass left in other networks."""
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for module in (self.front, self.back, self.generator):
            module.zero_grad(set_to_none=True)
