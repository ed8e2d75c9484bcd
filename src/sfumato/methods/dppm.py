"""DPPM: a score network trained by DP-SGD, with Hamiltonian or deterministic sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import check_choices, check_ema_decay, expected
from sfumato.methods.parts.class_gaussians import covariance_event, fit_gaussians, mean_event
from sfumato.methods.parts.score_sampling import ScoreSampling, randomised_response, sliced_loss
from sfumato.methods.parts.teacher import (
    LABEL_FILTER,
    FilteredGenerator,
    rejection_sample,
    teacher_query,
    train_teacher,
)
from sfumato.networks.features import LabelFilter
from sfumato.networks.pixels import Shape, per_row, valid_pixels
from sfumato.networks.score import ScoreNetwork
from sfumato.privacy import Block, Counts, Curator, Draws, SubsampledGaussian
from sfumato.privacy.gradients import Performance
from sfumato.training.optimisation import cosine_decay, ema_update, set_learning_rate

_TRAIN = "train"
_GRADIENT = "gradient"
_FINAL_LEARNING_RATE_FACTOR = 0.1


@dataclass(frozen=True)
class DPPM(ScoreSampling):
    """A score network for all noise levels, around a Gaussian for each class (after Liu et al., 2023).

    Guarantee: two noisy sums over all units (class means with counts, class covariances; the vector of a unit is
    clipped), then Poisson-subsampled Gaussian steps for the label filter and for the score network, under adding or
    removing one unit. The gradient of a unit, averaged over its ``draws``, is clipped.

    Differs from the paper: the privacy comes from DP-SGD. The paper's randomised response stays available for the
    sliced objective (``response_epsilon``); it is no protection, and nothing is credited to it. The class Gaussians,
    the label filter, the denoising objective and the U-Net are additions. The paper's algorithm is
    ``dppm-published``.

    >>> from sfumato.privacy import Budget
    >>> [event.name for event in DPPM(steps=10, filter_steps=0).plan(Budget(epsilon=1, delta=1e-5)).events]
    ['class means', 'class covariances', 'train']
    """

    name: ClassVar[str] = "dppm"
    paper: ClassVar[str] = "Liu, Ge, Wang, Zhuang, Liu: Learning Differentially Private Probabilistic Models (2023)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "score matching by DP-SGD around noisy class Gaussians, with a private label filter"
    }

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
    max_rejections: int = 3
    sigma_data: float = 0.5
    response_epsilon: float = 0.0
    neighbours: int = 10
    bfloat16: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"objective": ("denoising", "sliced")})
        check_ema_decay(self.ema_decay)
        if self.response_epsilon > 0 and self.objective == "denoising":
            raise ValueError("randomised response acts on projections: use objective = 'sliced', or response_epsilon 0")
        if self.neighbours < 2:
            raise ValueError(f"randomised response needs at least 2 neighbours, not {self.neighbours}")

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
            sampling_steps=2,
            leapfrog_steps=1,
            max_rejections=1,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Class means, class covariances, and the gradients of label filter and score network."""
        events = [mean_event(self.mean_noise)]
        if self.covariance_noise > 0:
            events.append(covariance_event(self.covariance_noise))
        if self.filter_steps:
            events.append(teacher_query(LABEL_FILTER, sampling_rate=self.sampling_rate, steps=self.filter_steps))
        train = SubsampledGaussian(_TRAIN, (Block(_GRADIENT),), sampling_rate=self.sampling_rate, steps=self.steps)
        return (*events, train)

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """The score network, with the label filter where there is one."""
        score = ScoreNetwork(
            shape,
            classes,
            width=self.width,
            coarsest_size=self.coarsest_size,
            patch_size=self.patch_size,
            frequencies=self.frequencies,
            sigma_data=self.sigma_data,
        )
        return FilteredGenerator(score, LabelFilter(shape, classes)) if self.filter_steps else score

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        """The class Gaussians, then the label filter, then the score network."""
        released = self.build(curator.shape, len(curator.classes)).to(curator.device)
        score = _score(released)
        counts = fit_gaussians(
            curator,
            score.gaussians,
            mean_clip_rms=self.mean_clip_rms,
            covariance_clip_rms=self.sigma_data,
            covariances=self.covariance_noise > 0,
        )
        if isinstance(released, FilteredGenerator):
            batch = self.sampling_rate * counts.total
            train_teacher(
                curator, LABEL_FILTER, released.label_filter, batch=batch, learning_rate=self.filter_learning_rate
            )
        self._train(curator, score)
        return released, counts

    def _train(self, curator: Curator, model: ScoreNetwork) -> None:
        average = deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        passes = self.steps * self.draws
        performance = Performance.for_training(curator.device, bfloat16=self.bfloat16, passes=passes)
        for step in curator.steps(_TRAIN, keep={"model": model, "average": average, "optimizer": optimizer}):
            factor = cosine_decay(step.index / self.steps, final=_FINAL_LEARNING_RATE_FACTOR)
            set_learning_rate(optimizer, self.learning_rate * factor)
            gradient = step.noisy_gradient(
                _GRADIENT, model, self.loss, clip_norm=self.clip_norm, draws=self.draws, performance=performance
            )
            # Adam is invariant to the scale of the gradient; the public clip norm brings it to order 1.
            (gradient / self.clip_norm).apply(optimizer)
            ema_update(average, model, index=step.index, decay=self.ema_decay)
        model.load_state_dict(average.state_dict())

    def loss(self, model: ScoreNetwork, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """Denoising or sliced score-matching loss of each row at a noise level of its own, ``[B]``."""
        clean, sigma = 2.0 * valid_pixels(images) - 1.0, self._sigma(random)
        noisy = clean + per_row(sigma) * random.normal("noise", *images.shape[1:])
        if self.objective == "sliced":
            projection, response = self._projections(random, images.shape[1:])
            return sliced_loss(model, noisy, sigma, labels, projection, response, derivative=self.derivative)
        residual, linear, size = model.residual(noisy, sigma, labels)
        return (residual.to(clean.dtype) - (clean - linear) / size).square().flatten(1).mean(1)

    def _sigma(self, random: Draws) -> Tensor:
        """Noise levels, stratified over the draws of one record, which reduces the variance of their average."""
        quantile = (random.draw % self.draws + random.uniform("level", 1)[:, 0]) / self.draws
        return self.training_sigma(quantile)

    def _projections(self, random: Draws, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """A projection and its randomised response, from a pool of projections of this row alone."""
        if self.response_epsilon <= 0:
            projection = random.normal("projections", *shape)
            return projection, projection
        pool = random.normal("projections", 2 * self.neighbours, math.prod(shape))
        similarity = nn.functional.cosine_similarity(pool[:, :1], pool, dim=2)
        uniform = random.uniform("response", 2)
        chosen = randomised_response(
            similarity, neighbours=self.neighbours, epsilon=self.response_epsilon, uniform=uniform
        )
        response = pool.gather(1, chosen[:, None, None].expand(-1, 1, pool.shape[2]))[:, 0]
        return pool[:, 0].reshape(-1, *shape), response.reshape(-1, *shape)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """Images by the sampler, filtered by label where there is a label filter."""
        score = _score(model)

        def draw(labels: Tensor) -> Tensor:
            return self.draw(score, labels, bfloat16=self.bfloat16)

        if not isinstance(model, FilteredGenerator):
            return draw(labels)
        return rejection_sample(draw, model.label_filter, labels, max_rejections=self.max_rejections)


def _score(model: nn.Module) -> ScoreNetwork:
    return expected(model.generator if isinstance(model, FilteredGenerator) else model, ScoreNetwork)
