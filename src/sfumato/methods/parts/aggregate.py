"""What DPAF and its published form share: noisy averages of features, pre-training on public images, and the game.

In the game a generator and a discriminator are trained on noisy aggregates and on generated images.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.parts.class_gaussians import divisors
from sfumato.networks.generators import Back, Front, Generator
from sfumato.networks.pixels import one_hot
from sfumato.privacy import Counts, Curator, Draws, NoisyGradient, Step
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.release.public_input import read_public
from sfumato.training.optimisation import DivergenceGuard, set_learning_rate, warmup_cosine_decay

if TYPE_CHECKING:
    from sfumato.methods.dpaf import DPAF


class FeatureAggregate(nn.Module):
    """A running average of noisy sums ``[classes, length]``, whose last column counts the rows.

    Averaging released answers is post-processing. While the features are fixed every answer has the same weight
    (``decay`` 1); while they are trained, older answers must be forgotten.
    """

    total: Tensor
    counted: Tensor
    weight: Tensor

    def __init__(self, classes: int, length: int, *, count_value: float, decay: float = 1.0) -> None:
        """Start at zero; each row contributes ``count_value`` to the last column."""
        super().__init__()
        self.count_value, self.decay = count_value, decay
        self.register_buffer("total", torch.zeros(classes, length))
        self.register_buffer("counted", torch.zeros(classes))
        self.register_buffer("weight", torch.zeros(2))

    def add(self, answer: Tensor, *, sampling_rate: float) -> None:
        """Add one noisy sum over a batch that was drawn at ``sampling_rate``."""
        self.total.mul_(self.decay).add_(answer / sampling_rate)
        self.counted.add_(answer[:, -1] / (sampling_rate * self.count_value))
        self.weight.mul_(self.weight.new_tensor([self.decay, 1.0])).add_(1.0)

    @property
    def counts(self) -> Counts:
        """Noisy class counts from all answers; the number of rows does not change with the features."""
        return Counts(self.counted / self.weight[1].clamp(min=1.0))

    @property
    def sizes(self) -> Tensor:
        return divisors(self.counts)

    @property
    def means(self) -> Tensor:
        return self.total / self.weight[0].clamp(min=1e-12) / self.sizes[:, None]


def mean_distance(vectors: Tensor, means: Tensor) -> Tensor:
    """Unbiased estimate of Σ over classes of ‖E v − mean‖², up to a constant.

    Args:
        vectors: Features of generated images, ``[classes, images, length]``. The pairs of an image with itself are
            left out, because they would reward images for being alike.
        means: The means to match, ``[classes, length]``.
    """
    images = vectors.shape[1]
    total = vectors.sum(1)
    own = (total.square().sum(1) - vectors.square().sum((1, 2))) / (images * (images - 1))
    return (own - 2.0 * (total / images * means).sum(1)).sum()


def pretrain_on_public_images(
    curator: Curator,
    path: str,
    front: Front,
    generator: Generator | None,
    *,
    batch: int,
    iterations: int,
    learning_rate: float = 0.001,
) -> None:
    """Train ``front`` as a classifier of the public classes, then ``generator`` on their mean features.

    Nothing private is touched. The public labels have no relation to the private classes, so all labels of the
    generator start alike. The collection is on the ledger before anything is learnt from it.
    """
    batches = _Batches(curator, path, front, batch)
    linear = nn.Linear(math.prod(front.sizes[-1]), batches.classes).to(batches.device)
    optimizer = torch.optim.Adam([*front.parameters(), *linear.parameters()], lr=learning_rate)
    for _ in range(iterations):
        images, labels = batches.draw()
        loss = F.cross_entropy(linear(front.layers(images, torch.zeros_like(labels))[-1].flatten(1)), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if generator is not None:
        _match_means(front, generator, batches, iterations=iterations, learning_rate=learning_rate)


class _Batches:
    """Random batches of public images."""

    def __init__(self, curator: Curator, path: str, front: Front, size: int) -> None:
        channels, height, width = front.shape
        public, entry = read_public(path, size=(height, width), colour="grey" if channels == 1 else "rgb")
        curator.treat_as_public(entry)
        first = next(front.parameters())
        self.device, self.dtype, self.size, self.classes = first.device, first.dtype, size, len(public.classes)
        self.images, self.labels = torch.as_tensor(public.pixels), torch.as_tensor(public.labels)

    def draw(self) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(self.images), (self.size,))
        return self.images[rows].to(self.device, self.dtype) / 255.0, self.labels[rows].to(self.device)


def _match_means(
    front: Front, generator: Generator, batches: _Batches, *, iterations: int, learning_rate: float
) -> None:
    optimizer = torch.optim.Adam(generator.parameters(), lr=learning_rate, betas=(0.5, 0.99))
    labels = torch.arange(batches.size, device=batches.device) % generator.classes
    for _ in range(iterations):
        with torch.no_grad():
            mean = front(batches.draw()[0], labels).mean(0, keepdim=True)
        optimizer.zero_grad(set_to_none=True)
        mean_distance(front(generator(labels), labels)[None], mean).backward()
        optimizer.step()
    front.zero_grad(set_to_none=True)


_BETAS = (0.5, 0.99)


def directional_features(front: Front, images: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
    """⟨v, s_i⟩ for each row i with the direction v of its class, ``[B]``. Its gradient is Jᵀv of that row alone."""
    return (front(images, labels) * direction[labels]).sum(1)


class AggregateGame:
    """Generator against discriminator. Of the private records it sees the Curator's answers only."""

    def __init__(
        self, method: DPAF, generator: Generator, front: Front, back: Back, aggregate: FeatureAggregate
    ) -> None:
        """Make the optimisers; the layers of ``front`` that require gradients are trained too."""
        self.method, self.generator, self.front, self.back, self.aggregate = method, generator, front, back, aggregate
        self.classes = len(aggregate.total)
        each = torch.arange(self.classes, device=aggregate.total.device)
        self.labels = each.repeat_interleave(method.fakes_per_class)
        learning_rate = method.discriminator_learning_rate
        self.generator_optimizer = torch.optim.Adam(generator.parameters(), lr=method.learning_rate, betas=_BETAS)
        self.back_optimizer = torch.optim.Adam(back.parameters(), lr=learning_rate, betas=_BETAS)
        trained = [p for p in front.parameters() if p.requires_grad]
        self.front_optimizer = torch.optim.Adam(trained, lr=learning_rate, betas=_BETAS) if trained else None
        self.pending: NoisyGradient | None = None
        self.deviation = torch.zeros(self.classes, 1, device=aggregate.total.device)
        self.target = aggregate.means

    @property
    def keep(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        kept: dict[str, Any] = {
            "generator": self.generator,
            "front": self.front,
            "back": self.back,
            "aggregate": self.aggregate,
            "generator optimizer": self.generator_optimizer,
            "back optimizer": self.back_optimizer,
        }
        return kept | ({"front optimizer": self.front_optimizer} if self.front_optimizer else {})

    def train_discriminator(self, step: Step, answer: Tensor, noise_multiplier: float) -> None:
        """The discriminator's part of a step: ``back`` from the noisy sum, ``front`` by a second block."""
        method = self.method
        if not method.adversarial_weight and self.front_optimizer is None:
            return
        expected = method.sampling_rate * self.aggregate.sizes[:, None]
        self.deviation = noise_multiplier / expected
        progress = step.index / max(1, method.steps)
        for optimizer in (self.back_optimizer, self.front_optimizer):
            if optimizer is not None:
                set_learning_rate(optimizer, warmup_cosine_decay(progress) * method.discriminator_learning_rate)
        with torch.no_grad():
            fakes = self.generator(self.labels)
            vectors = self.front(fakes, self.labels).view(self.classes, -1, self.front.length)
        # The number of records in a Poisson batch varies, and with it the length of the real aggregate.
        fake = self._with_noise(vectors.mean(1) * torch.poisson(expected) / expected)
        real = answer / expected
        real_gradient, fake_gradient = torch.zeros_like(real), torch.zeros_like(real)
        if method.adversarial_weight:
            real_gradient, fake_gradient = self._train_back(real, fake)
        if self.front_optimizer is None:
            return
        if method.matching_weight:
            # The loss of the front is −‖real − fake‖²: it learns features in which the two differ.
            difference = 2.0 * method.matching_weight * (self.target - vectors.mean(1))
            real_gradient, fake_gradient = real_gradient - difference, fake_gradient + difference
        norm = torch.sqrt(real_gradient.square().sum() + fake_gradient.square().sum()).clamp(min=1e-30)
        self._train_front(step, real_gradient / norm, fake_gradient / norm, fakes)

    def _with_noise(self, means: Tensor) -> Tensor:
        """Fake aggregates with noise of the real ones' distribution, so that only the features tell the two apart."""
        return means + self.deviation * torch.randn_like(means)

    def _logits(self, means: Tensor) -> Tensor:
        """What ``back`` says of one aggregate for each class."""
        logits: Tensor = self.back(self.front.last_maps(means), torch.eye(self.classes, device=means.device))
        return logits

    def _train_back(self, real: Tensor, fake: Tensor) -> tuple[Tensor, Tensor]:
        """One step of ``back``; the gradients of its loss with respect to the two aggregates."""
        real, fake = real.requires_grad_(True), fake.requires_grad_(True)
        loss = F.softplus(-self._logits(real)).mean() + F.softplus(self._logits(fake)).mean()
        weights = list(self.back.parameters())
        gradients = torch.autograd.grad(self.method.adversarial_weight * loss, [real, fake, *weights])
        _apply(self.back_optimizer, weights, gradients[2:])
        return gradients[0], gradients[1]

    def _train_front(self, step: Step, real_gradient: Tensor, fake_gradient: Tensor, fakes: Tensor) -> None:
        """The step of ``front``: Jᵀv of every record, clipped and summed with noise; of the fakes without noise."""
        method, clip_norm = self.method, self.method.gradient_clip()

        def real_loss(front: Front, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return directional_features(front, images, labels, real_gradient)

        def fake_loss(front: Front, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return directional_features(front, images, labels, fake_gradient)

        gradient = step.noisy_gradient("gradient", self.front, real_loss, clip_norm=clip_norm)
        rows = torch.arange(len(fakes), device=fakes.device)
        batch = Batch(fakes, self.labels, Draws((0, 0), rows, rows * 0), fakes.new_ones(len(fakes), 1))
        sums = clipped_sum(self.front, fake_loss, batch, clip_norm)
        weight = method.sampling_rate * self.aggregate.counts.total / len(fakes)
        gradient = gradient + NoisyGradient.of(self.front, {name: weight * sums[name] for name in gradient.names})
        self.pending = gradient if self.pending is None else self.pending + gradient
        if (step.index + 1) % method.asymmetry == 0 and self.front_optimizer is not None:
            # A sum of noisy gradients. One noise for a union of batches would not do: a record may be in several.
            (self.pending / method.clip_norm).apply(self.front_optimizer)
            self.pending = None

    def train_generator(self, number: int, guard: DivergenceGuard | None = None) -> None:
        """One step of the generator: its fakes against ``back``, and their means against the aggregate.

        ``back`` is trained on means, so it knows means of fakes; about single fakes it says nothing useful.
        """
        method = self.method
        progress = number / max(1, method.steps // method.discriminator_steps + method.iterations)
        factor = warmup_cosine_decay(progress) * method.learning_rate
        set_learning_rate(self.generator_optimizer, factor * (guard.learning_rate_factor if guard else 1.0))
        vectors = self.front(self.generator(self.labels), self.labels)
        loss = vectors.new_zeros(())
        grouped = vectors.view(self.classes, -1, self.front.length)
        if method.matching_weight:
            loss = method.matching_weight * mean_distance(grouped, self.target)
        if method.adversarial_weight:
            if method.generator_loss == "mean":
                logits = self._logits(self._with_noise(grouped.mean(1)))
            else:
                logits = self.back(self.front.last_maps(vectors), one_hot(self.labels, self.classes, vectors))
            loss = loss + method.adversarial_weight * F.softplus(-logits).mean()
        if guard is not None and guard.rolled_back(loss):
            return
        weights = list(self.generator.parameters())
        _apply(self.generator_optimizer, weights, torch.autograd.grad(loss, weights))


def _apply(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], gradients: tuple[Tensor, ...]) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
