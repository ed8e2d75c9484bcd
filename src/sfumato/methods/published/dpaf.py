"""DPAF's Algorithm 1 as printed. It has no guarantee: gradients come from the aggregate before the noise."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.networks.dcgan import Back, Front, Generator
from sfumato.privacy import Block, Budget, Curator, Draws, Plan, SubsampledGaussian
from sfumato.privacy.gradients import Batch, Clip, Compressed, clipped_sum

_DELTA = 1e-5
_SMALL = 0.1  # the ε that the paper gives to conv1 and to the aggregate; conv2 has the rest


class Published:
    """The raw records, and the steps that Algorithm 1 takes with them."""

    def __init__(self, curator: Curator, front: Front, *, batch: int, clip: Clip) -> None:
        pixels, labels = curator.open("DPAF differentiates the sum over a batch before the noise is added")
        self.curator, self.front, self.clip = curator, front, clip
        self.scale = 255.0 if pixels.dtype == np.uint8 else 1.0
        self.images, self.labels = torch.as_tensor(pixels), torch.as_tensor(labels, dtype=torch.int64)
        self.size = min(batch, len(pixels))

    def draw(self) -> tuple[Tensor, Tensor]:
        """A batch without replacement; everybody, where there are no more."""
        rows = torch.randperm(len(self.images))[: self.size].sort().values
        images = self.images[rows].to(self.curator.device, torch.get_default_dtype()) / self.scale
        return images, self.labels[rows].to(images.device)

    def multiplier(self, epsilon: float, *, steps: int, batches: int = 1) -> float:
        """The noise for ``epsilon`` if a record moved the sum by its own clip, which is what the paper assumes."""
        rate = min(1.0, batches * self.size / len(self.images))
        event = SubsampledGaussian("claim", (Block("sum"),), sampling_rate=rate, steps=max(1, steps))
        return Plan.calibrated((event,), Budget(epsilon, _DELTA)).events[0].noise_multiplier

    def gradient(self, name: str, front: Front, images: Tensor, labels: Tensor, slope: Tensor, noise: float) -> None:
        """Every record's Jᵀv, clipped and summed, with noise; v is of the aggregate without noise. Left in ``grad``."""

        def loss(model: Front, rows: Tensor, classes: Tensor, random: object) -> Tensor:
            return (model(rows, classes) * slope).sum(1)

        index = torch.arange(len(images), device=images.device)
        batch = Batch(images, labels, Draws((0, 0), index, index * 0), images.new_ones(len(images), 1))
        parts = clipped_sum(front, loss, batch, self.clip)
        bound = self.clip.clip if isinstance(self.clip, Compressed) else self.clip
        if not isinstance(bound, float):
            raise TypeError("the published algorithm has one clip norm")
        total = torch.cat([part.flatten() for part in parts.values()])
        noisy = self.curator.claimed_sum(name, total, claimed_sensitivity=bound, noise_multiplier=noise)
        weights = dict(front.named_parameters())
        for key, part in zip(parts, noisy.split([part.numel() for part in parts.values()]), strict=True):
            weights[key].grad = part.view_as(weights[key]).to(weights[key]) / len(images)


def as_published(
    curator: Curator,
    generator: Generator,
    front: Front,
    back: Back,
    *,
    iterations: int,
    batch: int,
    clip: Clip,
    asymmetry: int,
    critic: int,
    epsilon: float,
    learning_rate: float = 2e-4,
    classifier_learning_rate: float = 0.05,
) -> None:
    raw = Published(curator, front, batch=batch, clip=clip)
    if not raw.size:
        return
    small = min(_SMALL, epsilon / 3)
    _classifier(raw, front, iterations=iterations, epsilon=small, rate=classifier_learning_rate)
    front.first.requires_grad_(False)
    aggregate_noise = raw.multiplier(small, steps=iterations)
    conv2_noise = raw.multiplier(epsilon - 2 * small, steps=iterations // asymmetry, batches=asymmetry)
    optimizers = [_adam(module, learning_rate) for module in (front.second, back, generator)]
    batches: list[tuple[Tensor, Tensor]] = []
    for number in curator.track(range(1, iterations + 1), "training", iterations):
        images, labels = raw.draw()
        batches = [*batches, (images, labels)][-asymmetry:]
        with torch.no_grad():
            total = front(images, labels).sum(0)
            fakes = front(generator(labels), labels).mean(0)
        noisy = curator.claimed_sum("aggregate", total, claimed_sensitivity=1.0, noise_multiplier=aggregate_noise)
        _filtered(front, back, noisy / len(images), fakes).backward()
        _step(optimizers[1], front, back)
        if number % asymmetry == 0:
            images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
            with torch.no_grad():
                mean = front(images, labels).mean(0)
            mean.requires_grad_(True)
            slope = torch.autograd.grad(_filtered(front, back, mean, fakes), mean)[0]
            raw.gradient("conv2 gradient", front, images, labels, slope, conv2_noise)
            _step(optimizers[0], front, back)
        if number % critic == 0:
            vectors = front(generator(labels[: raw.size]), labels[: raw.size])
            place = torch.zeros(len(vectors), dtype=torch.int64, device=vectors.device)
            F.softplus(-back(front.last_maps(vectors), place)).mean().backward()
            _step(optimizers[2], front, back)


def _classifier(raw: Published, front: Front, *, iterations: int, epsilon: float, rate: float) -> None:
    """Lines 2 to 5: the batch's class proportions from its aggregate; all layers by SGD, conv1 with noise."""
    classes, device = len(raw.curator.classes), raw.curator.device
    model = copy.deepcopy(front)
    head = nn.Sequential(nn.Linear(front.length, 64), nn.LeakyReLU(0.2), nn.Linear(64, classes)).to(device)
    plain = torch.optim.SGD([*model.second.parameters(), *head.parameters()], lr=rate)
    noisy = torch.optim.SGD(model.first.parameters(), lr=rate)
    noise = raw.multiplier(epsilon, steps=iterations)
    for _ in raw.curator.track(range(iterations), "classifier", iterations):
        images, labels = raw.draw()
        wanted = F.one_hot(labels, classes).to(images).mean(0)
        model.requires_grad_(True)
        mean = model(images, labels).mean(0)
        loss = (head(mean).softmax(0) - wanted).square().mean()
        slope, *slopes = torch.autograd.grad(
            loss, [mean, *model.second.parameters(), *head.parameters()], allow_unused=True
        )
        for weight, value in zip([*model.second.parameters(), *head.parameters()], slopes, strict=True):
            weight.grad = value
        model.second.requires_grad_(False)
        raw.gradient("conv1 gradient", model, images, labels, slope, noise)
        plain.step()
        noisy.step()
        model.zero_grad(set_to_none=True)
        head.zero_grad(set_to_none=True)
    front.first.load_state_dict(model.first.state_dict())


def _filtered(front: Front, back: Back, real: Tensor, fake: Tensor) -> Tensor:
    """The discriminator's loss on two aggregates."""
    place = torch.zeros(1, dtype=torch.int64, device=real.device)
    accepted, refused = (back(front.last_maps(mean[None]), place) for mean in (real, fake))
    return (F.softplus(-accepted) + F.softplus(refused)).sum()


def _adam(module: nn.Module, rate: float) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=rate, betas=(0.5, 0.999))


def _step(optimizer: torch.optim.Optimizer, *modules: nn.Module) -> None:
    """Step, and clear what the backward pass left in the networks it only went through."""
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for module in modules:
        module.zero_grad(set_to_none=True)
