"""DPPM: a score network trained by DP-SGD, sampled by Hamiltonian dynamics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast, get_args

import torch
from torch import Tensor, nn
from torch.func import jvp

from sfumato.methods.base import Method, Shape
from sfumato.methods.parts.label_filter import (
    FilteredGenerator,
    label_filter_query,
    rejection_sample,
    train_label_filter,
)
from sfumato.networks.gaussians import ClassGaussians, column
from sfumato.networks.refinenet import RefineNet
from sfumato.networks.samplers import Kinetic, hamiltonian, heun, noise_levels
from sfumato.networks.score import ScoreNetwork
from sfumato.networks.wavelets import LabelFilter
from sfumato.privacy import Block, Counts, Curator, Draws, SubsampledGaussian
from sfumato.training.ema import ema_update
from sfumato.training.schedules import cosine_decay

_MEANS = "class means"
_SHAPES = "class covariances"
_TRAIN = "train"
_GRADIENT = "gradient"
_COUNT_SHARE = 0.25  # of the bound on an image goes to the one that counts it


@dataclass(frozen=True)
class DPPM(Method):
    """A score network for every noise level, and leapfrog dynamics along it (Liu et al., 2023).

    Guarantee: two noisy sums over everyone (class means with counts, class covariances; a unit's vector is clipped to
    the bound), then Poisson-subsampled Gaussian steps for a linear classifier and for the score network; a unit's
    gradient, averaged over its draws, is clipped.
    Differs from the paper: the privacy comes from DP-SGD. The paper's randomised response stays available for the
    sliced objective (``response``); it is worth nothing as protection, and nothing is credited to it.

    >>> [event.name for event in DPPM(steps=10).plan(Budget(epsilon=1, delta=1e-5)).events]
    ['class means', 'class covariances', 'judge', 'train']
    """

    name: ClassVar[str] = "dppm"
    paper: ClassVar[str] = "Liu, Ge, Wang, Zhuang, Liu: Learning Differentially Private Probabilistic Models (2023)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "score matching by DP-SGD around noisy class Gaussians, drawn before a private judge",
        "published": "randomised response on projection vectors, as printed: raw access, no guarantee",
    }
    raw_variants: ClassVar[frozenset[str]] = frozenset({"published"})

    # Training
    objective: str = "denoising"
    width: int = 32
    coarsest_size: int = 7
    patch_size: int = 2
    sampling_rate: float = 0.05
    steps: int = 500
    draws: int = 1
    clip_norm: float = 0.1
    learning_rate: float = 0.003
    ema_decay: float = 0.998
    mean_noise: float = 4.0
    mean_clip_rms: float = 0.5
    covariance_noise: float = 3.0
    frequencies: int = 14
    filter_steps: int = 100
    filter_learning_rate: float = 30.0
    log_sigma_mean: float = -0.7
    log_sigma_std: float = 1.2
    sigma_data: float = 0.5
    response_epsilon: float = 0.0
    neighbours: int = 10
    bfloat16: bool = False
    # Training as published
    iterations: int = 10_000
    batch_size: int = 128
    # Sampling
    sampler: str = "heun"
    sampling_steps: int = 18
    sigma_max: float = 10.0
    sigma_min: float = 0.2
    rho: float = 7.0
    leapfrog_steps: int = 3
    step_size: float = 0.5
    momentum_distribution: str = "gaussian"
    metropolis: bool = True
    max_rejections: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, allowed in (
            ("objective", ("denoising", "sliced")),
            ("sampler", ("hamiltonian", "heun")),
            ("momentum_distribution", get_args(Kinetic)),
        ):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} must be one of {', '.join(allowed)}, not {getattr(self, field)!r}")
        if self.response_epsilon > 0 and self.variant == "certified" and self.objective == "denoising":
            raise ValueError("randomised response acts on projections: use objective = 'sliced', or response = 0")
        if self.neighbours < 2:
            raise ValueError(f"randomised response needs at least 2 neighbours, not {self.neighbours}")
        if self.rho == 0:
            raise ValueError("rho cannot be 0; 7 is the default and -2 the paper's")
        if not 0 < self.sigma_min < self.sigma_max:
            raise ValueError("sigma_min must be positive and below sigma_max")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(
            variant=variant,
            width=4,
            patch_size=4,
            sampling_rate=0.6,
            steps=2,
            draws=2,
            clip_norm=0.01,
            mean_clip_rms=0.1,
            frequencies=3,
            filter_steps=2,
            neighbours=3,
            iterations=2,
            batch_size=8,
            sampling_steps=2,
            leapfrog_steps=1,
            max_rejections=1,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        if self.variant == "published":
            return ()
        events = [SubsampledGaussian(_MEANS, (Block(_MEANS, self.mean_noise),))]
        if self.covariance_noise > 0:
            events.append(SubsampledGaussian(_SHAPES, (Block(_SHAPES, self.covariance_noise),)))
        if self.filter_steps:
            events.append(label_filter_query(sampling_rate=self.sampling_rate, steps=self.filter_steps))
        return (
            *events,
            SubsampledGaussian(_TRAIN, (Block(_GRADIENT),), sampling_rate=self.sampling_rate, steps=self.steps),
        )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        if self.variant == "published":
            return RefineNet(shape, classes, width=self.width)
        sizes = {
            "width": self.width,
            "coarsest": self.coarsest_size,
            "patch": self.patch_size,
            "frequencies": self.frequencies,
        }
        score = ScoreNetwork(shape, classes, spread=self.sigma_data, **sizes)
        return FilteredGenerator(score, LabelFilter(shape, classes)) if self.filter_steps else score

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        released = self.build(curator.shape, len(curator.classes)).to(curator.device)
        if isinstance(released, RefineNet):
            return self._as_published(curator, released), None
        score = _score(released)
        counts = self._start(curator, score.gaussians)
        if isinstance(released, FilteredGenerator):
            batch = self.sampling_rate * counts.total
            train_label_filter(curator, released.judge, batch=batch, learning_rate=self.filter_learning_rate)
        self._train(curator, score)
        return released, counts

    def _start(self, curator: Curator, gaussians: ClassGaussians) -> Counts:
        """The slow waves of the mean images, with noisy counts, by one question; covariances by another."""
        size = self.mean_clip_rms * math.sqrt(math.prod(curator.shape))
        count = _COUNT_SHARE * size

        def waves(images: Tensor, labels: Tensor, random: object) -> Tensor:
            """Each image with one more number that counts it."""
            flat = _shortened(gaussians.analyse(images), size)
            return torch.cat([flat, torch.full_like(flat[:, :1], count)], dim=1)

        total = curator.noisy_sum(_MEANS, waves, clip_norm=math.hypot(size, count), by_class=True)
        counts = Counts(total[:, -1] / count)
        # A class of which nothing but noise is known gets the smallest count that does not blow the noise up.
        sizes = counts.values.clamp(min=max(1.0, counts.total / (100 * len(total))))
        means = gaussians.synthesise(total[:, :-1] / sizes[:, None])
        gaussians.means.copy_(2.0 * means.clamp(0.0, 1.0) - 1.0)
        if self.covariance_noise <= 0:
            return counts
        radius, waves_count = self.sigma_data * math.sqrt(math.prod(curator.shape)), math.prod(gaussians.waves)
        upper = torch.triu_indices(waves_count, waves_count, device=curator.device)
        # Twice there and asked for once: with this factor the vector is as long as the matrix.
        weight = torch.where(upper[0] == upper[1], 1.0, math.sqrt(2.0)).to(torch.get_default_dtype())

        def products(images: Tensor, labels: Tensor, random: object) -> Tensor:
            """Outer product of an image's slow waves, less the mean, and the energy of the others."""
            away = _shortened((2.0 * images - 1.0 - gaussians.means[labels]).flatten(1), radius).view_as(images)
            slow = gaussians.analyse(away)
            energy = (away.flatten(1).square().sum(1) - slow.square().sum(1)).clamp(min=0.0)
            return torch.cat([slow[:, upper[0]] * slow[:, upper[1]] * weight, energy[:, None]], dim=1)

        total = curator.noisy_sum(_SHAPES, products, clip_norm=radius**2, by_class=True)
        moments = total.new_zeros(len(total), waves_count, waves_count)
        moments[:, upper[0], upper[1]] = total[:, :-1] / weight
        moments = moments + moments.triu(1).transpose(1, 2)
        deviation = curator.plan.event(_SHAPES).noise_multiplier * radius**2
        gaussians.learn(moments, total[:, -1], sizes, deviation=deviation)
        return counts

    def _train(self, curator: Curator, model: ScoreNetwork) -> None:
        average = deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        keep = {"model": model, "average": average, "optimizer": optimizer}
        for step in curator.steps(_TRAIN, keep=keep):
            optimizer.param_groups[0]["lr"] = self.learning_rate * cosine_decay(step.index / self.steps, final=0.1)
            gradient = step.noisy_gradient(_GRADIENT, model, self.loss, clip_norm=self.clip_norm, draws=self.draws)
            # Adam does not see the scale; the clip is public and makes it one.
            (gradient / self.clip_norm).apply(optimizer)
            ema_update(average, model, index=step.index, decay=self.ema_decay)
        model.load_state_dict(average.state_dict())

    # The loss of one row: its image at a noise level of its own

    def loss(self, model: ScoreNetwork, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        # What is no pixel value is made one: a row that overflows would be found out by two more passes.
        clean, level = 2.0 * torch.nan_to_num(images).clamp(0.0, 1.0) - 1.0, self._level(random)
        noisy = clean + column(level) * random.normal("noise", *images.shape[1:])
        if self.objective == "sliced":
            projection, response = self._projections(random, images.shape[1:])
            return sliced_loss(model, noisy, level, labels, projection, response)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16):
            residual, linear, size = model.residual(noisy, level, labels)
        return (residual.to(clean.dtype) - (clean - linear) / size).square().flatten(1).mean(1)

    def _level(self, random: Draws) -> Tensor:
        """Log-normal. The draws of one record are spread evenly over the law, which steadies their average."""
        place = (random.draw % self.draws + random.uniform("level", 1)[:, 0]) / self.draws
        return self._log_normal(place)

    def _log_normal(self, place: Tensor) -> Tensor:
        # Neither end can be reached, where the level would be 0 or infinite.
        normal = torch.special.ndtri(place.clamp(1e-6, 1.0 - 1e-6))
        return torch.exp(self.log_sigma_mean + self.log_sigma_std * normal)

    def _projections(self, random: Draws, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """A projection and its randomised response, among projections that are this row's alone."""
        if self.response_epsilon <= 0:
            projection = random.normal("projections", *shape)
            return projection, projection
        pool = random.normal("projections", 2 * self.neighbours, math.prod(shape))
        similarity = nn.functional.cosine_similarity(pool[:, :1], pool, dim=2)
        uniform = random.uniform("response", 2)
        chosen = respond(similarity, neighbours=self.neighbours, epsilon=self.response_epsilon, uniform=uniform)
        answer = pool.gather(1, chosen[:, None, None].expand(-1, 1, pool.shape[2]))[:, 0]
        return pool[:, 0].reshape(-1, *shape), answer.reshape(-1, *shape)

    def _as_published(self, curator: Curator, model: RefineNet) -> RefineNet:
        """Algorithm 1 of the paper, on noisy images so that its sampler has levels to come down."""
        pixels, classes = curator.open("DPPM trains on the records themselves; its noise is on vectors without data")
        scale = 255.0 if pixels.dtype.kind == "u" else 1.0
        images, labels = torch.as_tensor(pixels), torch.as_tensor(classes, dtype=torch.int64)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        epsilon = self.response_epsilon if self.response_epsilon > 0 else 1.0
        iterations = self.iterations if len(images) else 0
        for _ in curator.track(range(iterations), _TRAIN, iterations):
            rows = torch.randint(len(images), (self.batch_size,))
            clean = 2.0 * images[rows].to(curator.device, torch.get_default_dtype()) / scale - 1.0
            level = self._log_normal(torch.rand(self.batch_size, device=clean.device, dtype=clean.dtype))
            noisy = clean + column(level) * torch.randn_like(clean)
            projection = torch.randn_like(clean)
            direction = nn.functional.normalize(projection.flatten(1), dim=1)
            uniform = torch.rand(self.batch_size, 2, device=clean.device)
            neighbours = min(self.neighbours, self.batch_size)
            chosen = respond(direction @ direction.T, neighbours=neighbours, epsilon=epsilon, uniform=uniform)
            target = labels[rows].to(clean.device)
            loss = sliced_loss(model, noisy, level, target, projection, projection[chosen]).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        return model

    # Sampling

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        if isinstance(model, RefineNet):
            return self._draw(model, labels)
        score = _score(model)
        if not isinstance(model, FilteredGenerator):
            return self._draw(score, labels)
        return rejection_sample(
            lambda some: self._draw(score, some), model.judge, labels, max_rejections=self.max_rejections
        )

    def _draw(self, network: ScoreNetwork | RefineNet, labels: Tensor) -> Tensor:

        def denoise(images: Tensor, level: Tensor) -> Tensor:
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16):
                clean = network.denoise(images, level, labels)
            # An estimate outside the pixels' range is known to be wrong.
            return torch.nan_to_num(clean.to(images.dtype)).clamp(-1.0, 1.0)

        def score(images: Tensor, level: Tensor) -> Tensor:
            return (denoise(images, level) - images) / column(level.square())

        ends = {"largest": self.sigma_max, "smallest": self.sigma_min}
        levels = noise_levels(self.sampling_steps, bend=self.rho, **ends)
        images = network.start(labels, self.sigma_max)
        if self.sampler == "heun":
            images = heun(denoise, images, levels)
        else:
            options: dict[str, Any] = {
                "leapfrog": self.leapfrog_steps,
                "step": self.step_size,
                "metropolis": self.metropolis,
            }
            images = hamiltonian(score, images, levels, kinetic=cast(Kinetic, self.momentum_distribution), **options)
            images = denoise(images, images.new_full((len(images),), levels[-1]))
        return ((images + 1.0) / 2.0).clamp(0.0, 1.0)


def _score(model: nn.Module) -> ScoreNetwork:
    network = model.generator if isinstance(model, FilteredGenerator) else model
    if not isinstance(network, ScoreNetwork):
        raise TypeError(f"a score network is needed, not {type(network).__name__}")
    return network


def respond(similarity: Tensor, *, neighbours: int, epsilon: float, uniform: Tensor) -> Tensor:
    """Equation (6): for each row of ``[rows, pool]`` the place of itself (its nearest), or of another near one."""
    nearest = similarity.topk(neighbours, dim=1).indices
    keep = 1.0 / (1.0 + (neighbours - 1) * math.exp(-epsilon))
    other = 1 + (uniform[:, 1] * (neighbours - 1)).long().clamp(max=neighbours - 2)
    place = torch.where(uniform[:, 0] < keep, torch.zeros_like(other), other)
    return nearest.gather(1, place[:, None])[:, 0]


def sliced_loss(
    model: ScoreNetwork | RefineNet, noisy: Tensor, level: Tensor, labels: Tensor, projection: Tensor, response: Tensor
) -> Tensor:
    """Equation (7), one number per row: vʳᵀ ∇s vʳ + ½ (vᵀ s)²; times level² ÷ pixels, so that every level counts."""

    def score(images: Tensor) -> Tensor:
        return model.score(images, level, labels)

    value, slope = cast(tuple[Tensor, Tensor], jvp(score, (noisy,), (response,)))
    curvature = (response * slope).flatten(1).sum(1)
    length = (projection * value).flatten(1).sum(1)
    return level.square() * (curvature + length.square() / 2.0) / noisy[0].numel()


def _shortened(rows: Tensor, length: float) -> Tensor:
    """Rows that are longer are brought to this length."""
    return rows * (length / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
