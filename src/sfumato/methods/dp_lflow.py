"""DP-LFlow: an autoencoder and a normalizing flow on its code, trained together by DP-SGD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sfumato.methods.base import Method, Shape
from sfumato.methods.parts.label_filter import (
    FilteredGenerator,
    label_filter_query,
    rejection_sample,
    train_label_filter,
)
from sfumato.networks.autoencoders import Autoencoder
from sfumato.networks.flows import RealNVP
from sfumato.networks.wavelets import LabelFilter
from sfumato.privacy import Block, Counts, Curator, SubsampledGaussian
from sfumato.privacy.gradients import PerClass
from sfumato.privacy.randomness import Draws
from sfumato.training.ema import ema_update
from sfumato.training.flat_parameters import FlatParameters
from sfumato.training.schedules import cosine_decay

_COUNTS = "label counts"
_TRAIN = "training"
_GROUPS = 2  # autoencoder and flow
# The paper's appendix E.2, for a rate of .1 and 300 steps: claimed ε → noise multiplier.
_CLAIMS = {10.0: 1.25, 1.0: 4.5}


class LatentFlow(nn.Module):
    """Image ↔ code by the autoencoder, code ↔ normal distribution by the flow."""

    def __init__(self, shape: Shape, *, code: int, width: int, couplings: int, hidden: int, labels: int = 0) -> None:
        super().__init__()
        self.autoencoder = Autoencoder(shape, code=code, width=width)
        self.flow = RealNVP(code, couplings=couplings, hidden=hidden, labels=labels)

    def draw(self, labels: Tensor, *, temperature: float) -> Tensor:
        """An image for each label, with torch's global generator."""
        weight = self.autoencoder.decode_first.weight
        normal = torch.randn(len(labels), self.flow.dimensions, device=weight.device, dtype=weight.dtype)
        return torch.sigmoid(self.autoencoder.decode(self.flow.inverse(temperature * normal, labels)))

    def log_density(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Of the images' codes; one number per row."""
        return self.flow.log_density(self.autoencoder.encode(images), labels)


@dataclass(frozen=True)
class DPLFlow(Method):
    """A latent flow for each class (Jiang and Sun, TMLR 2023).

    Guarantee: noisy class counts, ``filter_steps`` noisy sums for a judge, then ``steps`` noisy sums over Poisson
    batches; a unit's gradient is clipped in two groups, autoencoder and flow, which share one event. Adding or
    removing one unit. The models of all classes are one model, and a unit moves the slice of its own class.
    Differs from the paper: both clips are paid for, batches come from coins, class sizes are noisy; the average of
    the weights over the last steps is released; the judge, ``latent_noise``, ``temperature`` and the learning rates'
    decay are ours. The ``published`` variant takes the noise from the claim and gets the ε that it really has.

    >>> plan = DPLFlow(sampling_rate=0.1, steps=300).plan(Budget(epsilon=10, delta=1e-5))
    >>> 1.11 < plan.event("training").noise_multiplier < 1.14
    True
    """

    name: ClassVar[str] = "dp-lflow"
    paper: ClassVar[str] = "Jiang, Sun: DP-LFlow (TMLR 2023)"
    variants: ClassVar[Mapping[str, str]] = {
        "certified": "one model for each class",
        "conditional": "certified too: one model for all classes, the label in every coupling",
        "published": "the authors' noise, certified at the ε it really has",
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
        if self.claimed_epsilon not in _CLAIMS:
            raise ValueError(
                f"the paper gives its noise for a claimed ε of {' and '.join(f'{c:g}' for c in sorted(_CLAIMS))}, "
                f"not {self.claimed_epsilon:g}"
            )
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), not {self.ema_decay:g}; 0 releases the last weights")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        # Where the noise is fixed, the coins and steps say what a run costs: ε 2.3.
        rate, steps = (0.9, 3) if variant == "published" else (0.6, 2)
        return cls(
            variant=variant,
            sampling_rate=rate,
            steps=steps,
            latent_dim=4,
            width=2,
            couplings=1,
            hidden=4,
            ema_decay=0.5,
            count_noise=5.0,
            filter_steps=2,
            claimed_epsilon=1.0,
        )

    @classmethod
    def as_in_the_paper(cls, variant: str = "published", *, claimed_epsilon: float = 10.0) -> Self:
        """The authors' settings for 28×28 grey images, as far as paper and script give them."""
        return cls(
            variant=variant,
            sampling_rate=0.1,
            steps=300,
            latent_dim=20,
            width=32,
            couplings=9,
            hidden=200,
            reconstruction_weight=1e5,
            latent_noise=0.0,
            draws=1,
            autoencoder_clip_norm=0.1,
            flow_clip_norm=0.1,
            autoencoder_learning_rate=0.01,
            flow_learning_rate=0.005,
            final_learning_rate_factor=1.0,
            ema_decay=0.0,
            claimed_epsilon=claimed_epsilon,
            temperature=1.0,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        gradient = Block("gradient")
        if self.variant == "published":
            # Noise of σ·C on each of two groups of clip C: the joint sum moves by √2·C, so σ/√2 is what was paid.
            gradient = Block("gradient", _CLAIMS[self.claimed_epsilon] / math.sqrt(_GROUPS), fixed=True)
        counts = SubsampledGaussian(_COUNTS, (Block(_COUNTS, self.count_noise, fixed=True),))
        train = SubsampledGaussian(_TRAIN, (gradient,), sampling_rate=self.sampling_rate, steps=self.steps)
        if not self._filtered:
            return counts, train
        return (
            counts,
            label_filter_query(
                sampling_rate=self.sampling_rate, steps=self.filter_steps, noise_multiplier=self.filter_noise
            ),
            train,
        )

    @property
    def _filtered(self) -> bool:
        return self.filter_steps > 0 and self.variant != "published"

    def claim(self) -> dict[str, Any] | None:
        if self.variant != "published" or (self.sampling_rate, self.steps) != (0.1, 300):
            return None
        return {"epsilon": self.claimed_epsilon, "delta": 1e-5, "by": self.paper}

    def build(self, shape: Shape, classes: int) -> nn.Module:
        models = self._models(shape, classes)
        return FilteredGenerator(models, LabelFilter(shape, classes)) if self._filtered else models

    def _models(self, shape: Shape, classes: int) -> PerClass | LatentFlow:
        def latent_flow(labels: int) -> LatentFlow:
            return LatentFlow(
                shape,
                code=self.latent_dim,
                width=self.width,
                couplings=self.couplings,
                hidden=self.hidden,
                labels=labels,
            )

        if self.variant == "conditional":
            return latent_flow(classes)
        return PerClass([latent_flow(0) for _ in range(classes)])

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts]:
        classes = len(curator.classes)
        counts = curator.noisy_histogram(_COUNTS)
        released = self.build(curator.shape, classes).to(curator.device).requires_grad_(False)
        if isinstance(released, FilteredGenerator):
            released.judge.requires_grad_(True)
            batch = self.sampling_rate * counts.total
            train_label_filter(curator, released.judge, batch=batch, learning_rate=self.filter_learning_rate)
        model = self._models(curator.shape, classes).to(curator.device)
        clip = {"autoencoder": self.autoencoder_clip_norm, "flow": self.flow_clip_norm}
        weights = FlatParameters(model, clip)
        average = deepcopy(weights)
        rates = {"autoencoder": self.autoencoder_learning_rate, "flow": self.flow_learning_rate}
        groups = [{"params": [weights.groups[group]], "lr": rate} for group, rate in rates.items()]
        optimizer = torch.optim.Adam(groups, fused=True)
        for step in curator.steps(_TRAIN, keep={"model": weights, "optimizer": optimizer, "average": average}):
            share = cosine_decay(step.index / self.steps, final=self.final_learning_rate_factor)
            for group, rate in zip(optimizer.param_groups, rates.values(), strict=True):
                group["lr"] = share * rate
            gradient = step.noisy_gradient("gradient", model, self.loss, clip_norm=clip, draws=self.draws)
            # Adam does not care how large a gradient is: the sum does as well as the mean over a class.
            weights.apply_gradient(gradient, optimizer)
            ema_update(average, weights, index=step.index, decay=self.ema_decay)
        weights.become(average)
        (released.generator if isinstance(released, FilteredGenerator) else released).load_state_dict(
            model.state_dict()
        )
        return released, counts

    def loss(self, model: LatentFlow, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """Equation 5 with the script's cross-entropy, one number per row."""
        code = model.autoencoder.encode(images)
        if self.latent_noise:
            code = code + self.latent_noise * random.normal("latent", self.latent_dim)
        pixels = F.binary_cross_entropy_with_logits(model.autoencoder.decode(code), images, reduction="none")
        return self.reconstruction_weight * pixels.flatten(1).mean(1) - model.flow.log_density(code, labels)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        def draw(labels: Tensor) -> Tensor:
            images = self._draw(model.generator if isinstance(model, FilteredGenerator) else model, labels)
            return sharpened(images, self.sharpness) if self.sharpness else images

        if not isinstance(model, FilteredGenerator):
            return draw(labels)
        return rejection_sample(draw, model.judge, labels, max_rejections=self.max_rejections)

    def _draw(self, model: nn.Module, labels: Tensor) -> Tensor:
        if not isinstance(model, PerClass):
            return _latent_flow(model).draw(labels, temperature=self.temperature)
        parts = [
            _latent_flow(model[int(label)]).draw(labels[labels == label], temperature=self.temperature)
            for label in labels.unique()
        ]
        return torch.cat(parts)[labels.argsort(stable=True).argsort()]  # in the order of the labels again

    def density(self, model: nn.Module, images: Tensor) -> Tensor:
        """The exact log-density of each image's code under each class, ``[images, classes]``."""
        if isinstance(model, FilteredGenerator):
            return self.density(model.generator, images)
        if isinstance(model, PerClass):
            return torch.stack([_latent_flow(inner).log_density(images) for inner in model.models], dim=1)
        single = _latent_flow(model)
        numbers = torch.arange(single.flow.labels, device=images.device)
        return torch.stack([single.log_density(images, label.expand(len(images))) for label in numbers], dim=1)


def _latent_flow(model: nn.Module) -> LatentFlow:
    if not isinstance(model, LatentFlow):
        raise TypeError(f"a latent flow is needed, not {type(model).__name__}")
    return model


def sharpened(images: Tensor, factor: float) -> Tensor:
    """Smooth, then move away from a still smoother image by ``factor``; 1 only smooths. Costs no privacy."""
    smooth = _smooth(images)
    smoother = _smooth(smooth)
    return (smoother + factor * (smooth - smoother)).clamp(0.0, 1.0)


def _smooth(images: Tensor) -> Tensor:
    """Each pixel with its eight neighbours, itself weighing five times as much; at the border it repeats."""
    kernel = images.new_ones(1, 1, 3, 3)
    kernel[0, 0, 1, 1] = 5.0
    channels = images.shape[1]
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    return F.conv2d(padded, (kernel / kernel.sum()).expand(channels, 1, 3, 3), groups=channels)
