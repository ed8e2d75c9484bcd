"""DP-LFlow: an autoencoder and a normalizing flow on its latent codes, trained together by DP-SGD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.base import Method, check_ema_decay, expected
from sfumato.methods.parts.teacher import (
    LABEL_FILTER,
    FilteredGenerator,
    rejection_sample,
    teacher_query,
    train_teacher,
)
from sfumato.networks.features import LabelFilter
from sfumato.networks.flows import RealNVP
from sfumato.networks.pixels import Shape, sharpen
from sfumato.networks.vae import Autoencoder
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.gradients import PerClass
from sfumato.privacy.randomness import Draws
from sfumato.training.optimisation import FlatParameters, cosine_decay, ema_update

_COUNTS = "label counts"
_TRAIN = "training"
_CLIP_GROUPS = 2  # autoencoder and flow
# The paper's appendix E.2, for a sampling rate of 0.1 and 300 steps: claimed ε to noise multiplier.
_CLAIMED_NOISE = {10.0: 1.25, 1.0: 4.5}
_CLAIMED_FOR = (0.1, 300)


class LatentFlow(nn.Module):
    """An autoencoder between images and latent codes, and a flow between codes and a standard normal distribution."""

    def __init__(
        self, shape: Shape, *, latent_dim: int, width: int, couplings: int, hidden: int, labels: int = 0
    ) -> None:
        """Build both networks; with ``labels`` classes the flow is conditional."""
        super().__init__()
        self.autoencoder = Autoencoder(shape, latent_dim=latent_dim, width=width)
        self.flow = RealNVP(latent_dim, couplings=couplings, hidden=hidden, labels=labels)

    def draw(self, labels: Tensor, *, temperature: float) -> Tensor:
        weight = self.autoencoder.decode_first.weight
        normal = torch.randn(len(labels), self.flow.dimensions, device=weight.device, dtype=weight.dtype)
        return torch.sigmoid(self.autoencoder.decode(self.flow.inverse(temperature * normal, labels)))

    def log_density(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Log-density of the images' latent codes, ``[B]``."""
        return self.flow.log_density(self.autoencoder.encode(images), labels)


@dataclass(frozen=True)
class DPLFlow(Method):
    """A latent flow for each class (Jiang and Sun, TMLR 2023).

    Guarantee: noisy class counts, ``filter_steps`` noisy gradients for the label filter, then ``steps`` noisy gradients
    for the models, over Poisson batches, under adding or removing one unit. The gradient of a unit is clipped in two
    groups, autoencoder and flow, which share one event. The models of all classes are one stacked model, and a unit
    contributes to the slice of its own class.

    Differs from the paper: both clip norms are accounted for, batches are Poisson-sampled and class counts are noisy;
    the released weights are an exponential moving average; the label filter, ``latent_noise``, ``temperature`` and
    the decay of the learning rates are additions. The ``published`` variant draws the authors' noise and states the ε
    that it really has.

    >>> from sfumato.privacy import Budget
    >>> plan = DPLFlow(sampling_rate=0.1, steps=10, filter_steps=0).plan(Budget(epsilon=10, delta=1e-5))
    >>> [event.name for event in plan.events]
    ['label counts', 'training']
    """

    name: ClassVar[str] = "dp-lflow"
    paper: ClassVar[str] = "Jiang, Sun: DP-LFlow (TMLR 2023)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "one model for each class",
        "conditional": "certified too: one model for all classes, the label in every coupling",
        "published": "the authors' noise, certified at the ε it really has",
    }
    paper_settings: ClassVar[Mapping[str, Any]] = {
        "variant": "published",
        "sampling_rate": _CLAIMED_FOR[0],
        "steps": _CLAIMED_FOR[1],
        "latent_dim": 20,
        "width": 32,
        "couplings": 9,
        "hidden": 200,
        "final_learning_rate_factor": 1.0,
        "ema_decay": 0.0,
        "temperature": 1.0,
    }

    sampling_rate: float = 0.1
    steps: int = 300
    latent_dim: int = 20
    width: int = 0
    couplings: int = 6
    hidden: int = 100
    reconstruction_weight: float = 1e5
    latent_noise: float = 0.0
    draws: int = 1
    autoencoder_clip_norm: float = 0.1
    flow_clip_norm: float = 0.1
    autoencoder_learning_rate: float = 0.01
    flow_learning_rate: float = 0.005
    final_learning_rate_factor: float = 0.3
    ema_decay: float = 0.9
    count_noise: float = 100.0
    filter_steps: int = 100
    filter_noise: float = 6.0
    filter_learning_rate: float = 30.0
    max_rejections: int = 3
    claimed_epsilon: float = 10.0
    temperature: float = 1.15
    sharpness: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.claimed_epsilon not in _CLAIMED_NOISE:
            known = " and ".join(f"{claim:g}" for claim in sorted(_CLAIMED_NOISE))
            raise ValueError(f"the paper gives its noise for a claimed ε of {known}, not {self.claimed_epsilon:g}")
        check_ema_decay(self.ema_decay)

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        # Where the noise is fixed, sampling rate and steps determine the cost: ε 2.3.
        sampling_rate, steps = (0.9, 3) if variant == "published" else (0.6, 2)
        sizes = {"latent_dim": 4, "width": 2, "couplings": 1, "hidden": 4}
        options: dict[str, Any] = {"ema_decay": 0.5, "count_noise": 5.0, "filter_steps": 2, "claimed_epsilon": 1.0}
        return cls(variant=variant, sampling_rate=sampling_rate, steps=steps, **sizes, **options)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Class counts, the label filter's gradients and the models' gradients."""
        gradient = Block("gradient")
        if self.variant == "published":
            # Noise of σ·C on each of two groups of clip norm C: the joint sensitivity is √2·C, so σ/√2 is paid.
            noise = _CLAIMED_NOISE[self.claimed_epsilon] / math.sqrt(_CLIP_GROUPS)
            gradient = Block("gradient", noise, fixed=True)
        counts = SubsampledGaussian(_COUNTS, (Block(_COUNTS, self.count_noise, fixed=True),))
        train = SubsampledGaussian(_TRAIN, (gradient,), sampling_rate=self.sampling_rate, steps=self.steps)
        if not self._filtered:
            return counts, train
        label_filter = teacher_query(
            LABEL_FILTER, sampling_rate=self.sampling_rate, steps=self.filter_steps, noise_multiplier=self.filter_noise
        )
        return counts, label_filter, train

    @property
    def _filtered(self) -> bool:
        return self.filter_steps > 0 and self.variant != "published"

    def claim(self) -> dict[str, Any] | None:
        """The paper's ε, for its own sampling rate and number of steps."""
        if self.variant != "published" or (self.sampling_rate, self.steps) != _CLAIMED_FOR:
            return None
        return {"epsilon": self.claimed_epsilon, "delta": 1e-5, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> nn.Module:
        models = self._models(shape, classes)
        return FilteredGenerator(models, LabelFilter(shape, classes)) if self._filtered else models

    def _models(self, shape: Shape, classes: int) -> PerClass | LatentFlow:
        def latent_flow(labels: int) -> LatentFlow:
            sizes = {"latent_dim": self.latent_dim, "width": self.width}
            return LatentFlow(shape, couplings=self.couplings, hidden=self.hidden, labels=labels, **sizes)

        if self.variant == "conditional":
            return latent_flow(classes)
        return PerClass([latent_flow(0) for _ in range(classes)])

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        """Class counts, then the label filter, then the models."""
        counts = curator.noisy_histogram(_COUNTS)
        released = self.build(curator.shape, len(curator.classes)).to(curator.device).requires_grad_(False)
        if isinstance(released, FilteredGenerator):
            released.label_filter.requires_grad_(True)
            batch = self.sampling_rate * counts.total
            train_teacher(
                curator, LABEL_FILTER, released.label_filter, batch=batch, learning_rate=self.filter_learning_rate
            )
        trained = self._train(curator)
        _generator(released).load_state_dict(trained.state_dict())
        return released, counts

    def _train(self, curator: Curator) -> PerClass | LatentFlow:
        model = self._models(curator.shape, len(curator.classes)).to(curator.device)
        clip_norm = {"autoencoder": self.autoencoder_clip_norm, "flow": self.flow_clip_norm}
        weights = FlatParameters(model, clip_norm)
        average = deepcopy(weights)
        rates = {"autoencoder": self.autoencoder_learning_rate, "flow": self.flow_learning_rate}
        groups = [{"params": [weights.groups[group]], "lr": rate} for group, rate in rates.items()]
        optimizer = torch.optim.Adam(groups, fused=True)
        for step in curator.steps(_TRAIN, keep={"model": weights, "optimizer": optimizer, "average": average}):
            factor = cosine_decay(step.index / self.steps, final=self.final_learning_rate_factor)
            for group, rate in zip(optimizer.param_groups, rates.values(), strict=True):
                group["lr"] = factor * rate
            gradient = step.noisy_gradient("gradient", model, self.loss, clip_norm=clip_norm, draws=self.draws)
            # Adam is invariant to the scale of the gradient, so the sum is as good as the mean over a class.
            weights.apply_gradient(gradient, optimizer)
            ema_update(average, weights, index=step.index, decay=self.ema_decay)
        weights.copy_from(average)
        return model

    def loss(self, model: LatentFlow, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """Equation 5 with the script's cross-entropy, ``[B]``."""
        code = model.autoencoder.encode(images)
        if self.latent_noise:
            code = code + self.latent_noise * random.normal("latent", self.latent_dim)
        pixels = F.binary_cross_entropy_with_logits(model.autoencoder.decode(code), images, reduction="none")
        return self.reconstruction_weight * pixels.flatten(1).mean(1) - model.flow.log_density(code, labels)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """Images by the inverse flow and the decoder, filtered by label where there is a label filter."""

        def draw(labels: Tensor) -> Tensor:
            images = self._draw(_generator(model), labels)
            return sharpen(images, self.sharpness) if self.sharpness else images

        if not isinstance(model, FilteredGenerator):
            return draw(labels)
        return rejection_sample(draw, model.label_filter, labels, max_rejections=self.max_rejections)

    def _draw(self, model: nn.Module, labels: Tensor) -> Tensor:
        if not isinstance(model, PerClass):
            return expected(model, LatentFlow).draw(labels, temperature=self.temperature)
        parts = [
            expected(model[int(label)], LatentFlow).draw(labels[labels == label], temperature=self.temperature)
            for label in labels.unique()
        ]
        return torch.cat(parts)[labels.argsort(stable=True).argsort()]  # back into the order of the labels

    def density(self, model: nn.Module, images: Tensor) -> Tensor:
        """Exact log-density of each image's latent code under each class, ``[B, classes]``."""
        model = _generator(model)
        if isinstance(model, PerClass):
            return torch.stack([expected(inner, LatentFlow).log_density(images) for inner in model.models], dim=1)
        single = expected(model, LatentFlow)
        numbers = torch.arange(single.flow.labels, device=images.device)
        return torch.stack([single.log_density(images, label.expand(len(images))) for label in numbers], dim=1)


def _generator(model: nn.Module) -> nn.Module:
    return model.generator if isinstance(model, FilteredGenerator) else model
