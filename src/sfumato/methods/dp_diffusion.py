"""DP-Diffusion: an EDM diffusion model trained by DP-SGD, warm-started by a certified latent generator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from sfumato.data.procedural import procedural_images
from sfumato.methods.base import Method, Shape, check_choices, check_ema_decay, expected
from sfumato.methods.dp2_vae import DP2VAE
from sfumato.methods.dp_lflow import DPLFlow
from sfumato.methods.parts.teacher import TEACHER, guided, rejection_sample, teacher_query, train_teacher
from sfumato.networks.edm import Denoiser, UNet, half_precision, heun, log_normal_sigma, use_channels_last
from sfumato.networks.features import ScatteringClassifier
from sfumato.networks.score import karras_sigmas
from sfumato.privacy import AnyBudget, Block, Budget, Counts, Curator, Draws, Plan, PrivateState, SubsampledGaussian
from sfumato.privacy.curator import Item
from sfumato.privacy.gradients import Performance
from sfumato.privacy.step import Features, Step
from sfumato.training.optimisation import FlatParameters, cosine_decay, ema_update

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


_COUNTS, _TRAIN, _GRADIENT, _LATENT = "label counts", "training", "gradient", "latent "
_WARM_STARTS = ("latent", "procedural", "none")


class TaughtDiffusion(nn.Module):
    """The denoiser and, where there is one, the teacher, as they are released together."""

    def __init__(self, denoiser: Denoiser, teacher: ScatteringClassifier | None) -> None:
        super().__init__()
        self.denoiser, self.teacher = denoiser, teacher


@dataclass(frozen=True)
class DPDiffusion(Method):
    """A class-conditional diffusion model (after Dockhorn et al., 2023), with a warm start and a teacher of our own.

    Guarantee: noisy class counts; full-batch Gaussian steps for a linear teacher; with ``warm_start = "latent"`` the
    queries of DP²-VAE or DP-LFlow; Poisson-subsampled Gaussian steps for the U-Net, where a unit's gradient, averaged
    over ``draws`` noise levels, is clipped once. All are answered by one Curator under one plan. Adding or removing
    one unit. Samples of the latent generator and training on them are post-processing.
    Differs from the paper: the warm start, the teacher, stratified noise levels and the U-Net are ours; ``dpdm()`` is
    without the first three.

    >>> [event.name for event in DPDiffusion(warm_start="none").plan(Budget(epsilon=10, delta=1e-5)).events]
    ['label counts', 'teacher', 'training']
    """

    name: ClassVar[str] = "dp-diffusion"
    paper: ClassVar[str] = "Dockhorn, Cao, Vahdat, Kreis: Differentially Private Diffusion Models (TMLR 2023)"
    variants: ClassVar[Mapping[str, str]] = {"certified": "EDM by DP-SGD, with a warm start and a teacher"}

    # Network
    width: int = 48
    patch_size: int = 2
    blocks: int = 1
    sigma_data: float = 0.5
    # Private training
    sampling_rate: float = 0.1
    steps: int = 300
    draws: int = 16
    clip_norm: float = 0.001
    learning_rate: float = 0.001
    final_learning_rate_factor: float = 0.1
    ema_decay: float = 0.99
    log_sigma_mean: float = -0.7
    log_sigma_std: float = 1.2
    stratified: bool = True
    bfloat16: bool = True
    # Warm start: its share of ε, the latent generator, and the training on public images
    warm_start: str = "latent"
    latent_share: float = 0.4
    latent: str = "dp2-vae"
    latent_sampling_rate: float = 0.1
    latent_steps: int = 300
    latent_width: int = 32
    latent_prior_clip: float = 2.0
    procedural_share: float = 0.25
    public_images: int = 60_000
    public_steps: int = 1000
    public_batch_size: int = 2048
    public_learning_rate: float = 0.002
    # Teacher: its share of ε
    teacher_share: float = 0.15
    teacher_sampling_rate: float = 1.0
    teacher_steps: int = 50
    teacher_learning_rate: float = 30.0
    count_noise: float = 100.0
    # Sampling
    sampling_steps: int = 18
    sigma_max: float = 20.0
    sigma_min: float = 0.1
    rho: float = 7.0
    churn: float = 6.0
    guidance: float = 0.0
    max_rejections: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"warm_start": _WARM_STARTS, "latent": LATENT_METHODS})
        check_ema_decay(self.ema_decay)
        if min(self.draws, self.patch_size, self.blocks) < 1:
            raise ValueError("draws, patch_size and blocks must be at least 1")
        shares = self.teacher_share + (self.latent_share if self.warm_start == "latent" else 0.0)
        if min(self.teacher_share, self.latent_share) < 0 or shares >= 1:
            raise ValueError(f"the shares of teacher and latent generator must leave some of ε, not take {shares:g}")
        if self.warm_start == "latent" and self.latent_share <= 0:
            raise ValueError("a latent warm start needs a share of the budget; without one use warm_start = 'none'")
        if not 0 < self.sigma_min < self.sigma_max:
            raise ValueError("sigma_min must be positive and below sigma_max")
        if self.guidance > 0 and not self.teacher_share:
            raise ValueError("guidance needs a teacher; give it a share of the budget, or set guidance = 0")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(
            variant=variant,
            width=4,
            patch_size=4,
            sampling_rate=0.6,
            steps=2,
            draws=2,
            latent_sampling_rate=0.6,
            latent_steps=2,
            latent_width=2,
            latent_prior_clip=1.0,
            public_images=16,
            public_steps=2,
            public_batch_size=8,
            teacher_steps=2,
            count_noise=5.0,
            sampling_steps=2,
            churn=1.0,
            guidance=0.5,
            max_rejections=1,
        )

    @classmethod
    def dpdm(cls) -> Self:
        """DPDM as its authors train MNIST and Fashion-MNIST, on our U-Net and with Heun's method in place of DDIM."""
        return cls(
            warm_start="none",
            teacher_share=0.0,
            stratified=False,
            patch_size=1,
            width=64,
            sigma_data=(1 / 3) ** 0.5,
            sampling_rate=4096 / 60_000,
            steps=300 * 15,
            draws=32,
            clip_norm=0.001,
            learning_rate=3e-4,
            final_learning_rate_factor=1.0,
            ema_decay=0.999,
            log_sigma_mean=-1.2,
            bfloat16=False,
            sampling_steps=50,
            sigma_max=80.0,
            sigma_min=0.002,
            churn=0.0,
        )

    # The budget

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        train = SubsampledGaussian(_TRAIN, (Block(_GRADIENT),), sampling_rate=self.sampling_rate, steps=self.steps)
        return (*self._counts_query(), *self._teacher_query(), *self._latent_queries(), train)

    def plan(self, budget: AnyBudget) -> Plan:
        """Teacher and latent generator get the noise that alone would cost their share of ε; training has the rest."""
        if not isinstance(budget, Budget):
            return super().plan(budget)
        teacher = with_share(self._teacher_query(), budget, self.teacher_share)
        latent = with_share(self._latent_queries(), budget, self.latent_share)
        return Plan.calibrated((*self._counts_query(), *teacher, *latent, self.queries()[-1]), budget)

    def _counts_query(self) -> tuple[SubsampledGaussian, ...]:
        block = Block(_COUNTS, self.count_noise, fixed=True)
        return (SubsampledGaussian(_COUNTS, (block,)),) if self.teacher_share else ()

    def _teacher_query(self) -> tuple[SubsampledGaussian, ...]:
        query = teacher_query(TEACHER, sampling_rate=self.teacher_sampling_rate, steps=self.teacher_steps)
        return (query,) if self.teacher_share else ()

    def _latent_queries(self) -> tuple[SubsampledGaussian, ...]:
        return prefixed(self._latent_method().queries(), _LATENT) if self.warm_start == "latent" else ()

    def _latent_method(self) -> Method:
        return latent_method(
            self.latent,
            sampling_rate=self.latent_sampling_rate,
            steps=self.latent_steps,
            width=self.latent_width,
            prior_clip=self.latent_prior_clip,
        )

    # Training

    def build(self, shape: Shape, classes: int) -> TaughtDiffusion:
        net = UNet(shape, classes, width=self.width, patch=self.patch_size, blocks=self.blocks)
        teacher = ScatteringClassifier(shape, classes) if self.teacher_share else None
        return TaughtDiffusion(Denoiser(net, sigma_data=self.sigma_data), teacher)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        released, counts = self.build(curator.shape, len(curator.classes)).to(curator.device), None
        if released.teacher is not None:
            counts = curator.noisy_histogram(_COUNTS)
            batch = self.teacher_sampling_rate * counts.total
            train_teacher(curator, TEACHER, released.teacher, batch=batch, learning_rate=self.teacher_learning_rate)
        draw = None
        if self.warm_start == "latent":
            latent = self._latent_method()
            generator, _ = latent.fit_networks(sub_curator(curator, _LATENT))
            generate = functools.partial(latent.generate, generator)
            draw = filtered(generate, released.teacher, max_rejections=self.max_rejections)
        self._train(curator, released.denoiser, draw)
        return released, counts

    def _warm_start(self, curator: Curator, model: Denoiser, draw: Draw | None) -> None:
        """Train on samples of the latent generator and on procedural images; no private image is used."""
        images, labels = public_images(curator, draw, count=self.public_images, procedural_share=self.procedural_share)
        # A copy, because the training may change how weights lie in memory, and the model's are views of one vector.
        trained = deepcopy(model)
        sizes = {"steps": self.public_steps, "batch": self.public_batch_size}
        rate = self.public_learning_rate
        train_on_public_images(curator, trained, images, labels, self._sigma, learning_rate=rate, **sizes)
        model.load_state_dict(trained.state_dict())

    def _train(self, curator: Curator, model: Denoiser, draw: Draw | None) -> None:
        passes, clip = self.steps * self.draws, {"net": self.clip_norm}
        performance = Performance.for_training(curator.device, bfloat16=self.bfloat16, passes=passes)
        weights = FlatParameters(model, clip)
        ema = deepcopy(weights)
        optimizer = torch.optim.Adam(weights.parameters(), lr=self.learning_rate, fused=True)
        for step in curator.steps(_TRAIN, keep={"weights": weights, "ema": ema, "optimizer": optimizer}):
            # A run that goes on has the weights of its checkpoint, which the start led to.
            if step.index == 0 and self.warm_start != "none":
                self._warm_start(curator, model, draw)
                ema.copy_from(weights)
            share = cosine_decay(step.index / self.steps, final=self.final_learning_rate_factor)
            optimizer.param_groups[0]["lr"] = self.learning_rate * share
            gradient = step.noisy_gradient(
                _GRADIENT, model, self.loss, clip_norm=clip, draws=self.draws, performance=performance
            )
            # Adam does not see the scale; the clip norm is public and makes it about one.
            weights.apply_gradient(gradient / self.clip_norm, optimizer)
            ema_update(ema, weights, index=step.index, decay=self.ema_decay)
        weights.copy_from(ema)

    def loss(self, model: Denoiser, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        """The denoising loss of one draw, ``[rows]``; stratified draws of a record fall into different noise levels."""
        # Values that are no pixels are made pixels: a row that is not finite would cost a second pass.
        clean = 2.0 * torch.nan_to_num(images).clamp(0.0, 1.0) - 1.0
        quantile = random.uniform("sigma", 1)[:, 0]
        if self.stratified:
            quantile = (random.draw % self.draws + quantile) / self.draws
        noise = random.normal("noise", *images.shape[1:])
        return model.loss(clean, noise, self._sigma(quantile), labels)

    def _sigma(self, quantile: Tensor) -> Tensor:
        return log_normal_sigma(quantile, mean=self.log_sigma_mean, deviation=self.log_sigma_std)

    # Sampling

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        model = expected(model, TaughtDiffusion)
        half = self.bfloat16 and labels.device.type == "cuda"
        denoiser = half_precision(model.denoiser) if half else model.denoiser
        draw = functools.partial(self._draw, denoiser, model.teacher)
        return filtered(draw, model.teacher, max_rejections=self.max_rejections)(labels)

    def _draw(self, denoiser: Denoiser, teacher: ScatteringClassifier | None, labels: Tensor) -> Tensor:
        def denoise(noisy: Tensor, sigma: Tensor) -> Tensor:
            clean = torch.nan_to_num(denoiser(noisy, sigma, labels))
            if teacher is not None and self.guidance > 0:
                spread = sigma.square() * self.sigma_data**2 / (sigma.square() + self.sigma_data**2)
                clean = guided(clean, labels, teacher, variance=self.guidance * spread.view(-1, 1, 1, 1))
            # An estimate outside the range of pixels is known to be wrong.
            return clean.clamp(-1.0, 1.0)

        sigmas = karras_sigmas(self.sampling_steps, sigma_max=self.sigma_max, sigma_min=self.sigma_min, rho=self.rho)
        noise = self.sigma_max * torch.randn(len(labels), *denoiser.net.shape, device=labels.device)
        images = heun(denoise, noise, sigmas, churn=self.churn)
        return ((images + 1.0) / 2.0).clamp(0.0, 1.0)
