"""A start for a diffusion model: samples of a certified latent generator, procedural images, and training on both.

Samples of a released generator are post-processing and procedural images hold no data, so none of it costs privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from sfumato.data.procedural import procedural_images
from sfumato.methods.base import Method
from sfumato.methods.dp2_vae import DP2VAE
from sfumato.methods.dp_lflow import DPLFlow
from sfumato.methods.parts.teacher import rejection_sample
from sfumato.networks.edm import Denoiser, use_channels_last
from sfumato.privacy import Budget, Counts, Curator, Plan, PrivateState, SubsampledGaussian
from sfumato.privacy.curator import Item
from sfumato.privacy.step import Features, Step
from sfumato.training.optimisation import cosine_decay

LATENT_METHODS = ("dp2-vae", "dp-lflow")
Draw = Callable[[Tensor], Tensor]
"""``draw(labels)``: one image in 0..1 for each label."""
_DRAWN_AT_ONCE = 2000


def latent_method(name: str, *, sampling_rate: float, steps: int, width: int, prior_clip: float) -> Method:
    """The latent generator of this name, with public settings. It has no label filter: the teacher does that work."""
    match name:
        case "dp2-vae":
            return DP2VAE(sampling_rate=sampling_rate, steps=steps, width=width, prior_clip_norm=prior_clip)
        case "dp-lflow":
            return DPLFlow(sampling_rate=sampling_rate, steps=steps, filter_steps=0)
    raise ValueError(f"latent must be one of {', '.join(LATENT_METHODS)}, not {name!r}")


def filtered(draw: Draw, teacher: nn.Module | None, *, max_rejections: int) -> Draw:
    """``draw`` with what the teacher assigns to another class drawn again; without a teacher as it is."""
    if teacher is None:
        return draw

    def accepted(labels: Tensor) -> Tensor:
        return rejection_sample(draw, teacher, labels, max_rejections=max_rejections)

    return accepted


def public_images(curator: Curator, draw: Draw | None, *, count: int, procedural_share: float) -> tuple[Tensor, Tensor]:
    """``uint8 [count, *shape]`` and labels: samples with their labels, procedural images with random ones.

    Without ``draw`` all images are procedural.
    """
    classes, device = len(curator.classes), curator.device
    made = round(procedural_share * count) if draw is not None else count
    labels = torch.cat([torch.arange(count - made) % classes, torch.randint(classes, (made,))]).to(device)
    parts: list[Tensor] = []
    if draw is not None and made < count:
        with torch.no_grad():
            parts += [draw(some) for some in labels[: count - made].split(_DRAWN_AT_ONCE)]
    parts.append(procedural_images(made, shape=curator.shape, device=device))
    return torch.cat([(part.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8) for part in parts]), labels


def train_on_public_images(
    curator: Curator,
    model: Denoiser,
    images: Tensor,
    labels: Tensor,
    sigma: Callable[[Tensor], Tensor],
    *,
    steps: int,
    batch: int,
    learning_rate: float,
) -> None:
    """Ordinary training of a denoiser; ``sigma`` turns uniform numbers into noise levels."""
    half = images.device.type == "cuda"
    if half:
        use_channels_last(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, fused=True)
    strata = torch.arange(batch, device=images.device)
    for index in curator.track(range(steps), "warm start", steps):
        optimizer.param_groups[0]["lr"] = learning_rate * cosine_decay(index / steps, final=0.1)
        rows = torch.randint(len(images), (batch,), device=images.device)
        clean = images[rows].to(torch.get_default_dtype()) / 127.5 - 1.0
        levels = sigma((strata + torch.rand(batch, device=images.device)) / batch)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
            loss = model.loss(clean, torch.randn_like(clean), levels, labels[rows]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


# A method inside a method: both ask one Curator, under one plan and one ledger.


def prefixed(queries: Iterable[SubsampledGaussian], prefix: str) -> tuple[SubsampledGaussian, ...]:
    """The inner method's queries as the outer method lists them."""
    return tuple(replace(query, name=prefix + query.name) for query in queries)


def with_share(queries: Sequence[SubsampledGaussian], budget: Budget, share: float) -> tuple[SubsampledGaussian, ...]:
    """The queries with the noise that alone would cost this share of ε; it is fixed in the plan of the whole."""
    if not queries:
        return ()
    alone = Plan.calibrated(queries, replace(budget, epsilon=share * budget.epsilon))
    return tuple(replace(e, blocks=tuple(replace(block, fixed=True) for block in e.blocks)) for e in alone.events)


def sub_curator(curator: Curator, prefix: str) -> Curator:
    """The Curator as the inner method sees it: the names it asks by get the prefix, and nothing else changes."""
    return cast(Curator, _SubCurator(curator, prefix))


class _SubCurator:
    """Hands every query on to the outer Curator, which alone clips, sums, charges and adds noise."""

    def __init__(self, outer: Curator, prefix: str) -> None:
        self._outer, self._prefix = outer, prefix
        self.shape, self.classes, self.device = outer.shape, outer.classes, outer.device
        own = (event for event in outer.plan.events if event.name.startswith(prefix))
        events = tuple(replace(event, name=event.name.removeprefix(prefix)) for event in own)
        self.plan = Plan(outer.plan.budget, events)

    def steps(self, name: str, *, keep: Mapping[str, Any] | None = None) -> Iterator[Step]:
        return self._outer.steps(self._prefix + name, keep=keep)

    def noisy_sum(self, name: str, features: Features, *, clip_norm: float, by_class: bool = False) -> Tensor:
        return self._outer.noisy_sum(self._prefix + name, features, clip_norm=clip_norm, by_class=by_class)

    def noisy_second_moments(
        self, name: str, features: Features, *, clip_norm: float, by_class: bool = False
    ) -> Tensor:
        return self._outer.noisy_second_moments(self._prefix + name, features, clip_norm=clip_norm, by_class=by_class)

    def noisy_histogram(self, name: str) -> Counts:
        return self._outer.noisy_histogram(self._prefix + name)

    def private_state(
        self, name: str, shape: tuple[int, ...], *, fill: float = 0.0, shards: int | None = None
    ) -> PrivateState:
        return self._outer.private_state(self._prefix + name, shape, fill=fill, shards=shards)

    def track(
        self, items: Iterable[Item], name: str, total: int, *, keep: Mapping[str, Any] | None = None
    ) -> Iterator[Item]:
        return self._outer.track(items, self._prefix + name, total, keep=keep)
