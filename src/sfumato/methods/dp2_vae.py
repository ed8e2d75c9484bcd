"""DP²-VAE: a released decoder, and posteriors that are private state of single records or of shards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, check_choices, check_ema_decay, expected
from sfumato.methods.parts.record_posteriors import (
    Decode,
    LatentGenerator,
    ShardEncoder,
    decoder_for,
    fit_posteriors,
    posterior_moments,
)
from sfumato.networks.pixels import Shape
from sfumato.networks.vae import (
    ConvolutionalVAE,
    Decoder,
    Encoder,
    bernoulli_nll,
    channels_of,
    reparametrise,
)
from sfumato.privacy import Block, Counts, Curator, NoisyGradient, Step, SubsampledGaussian
from sfumato.privacy.gradients import PerClass
from sfumato.privacy.randomness import Draws
from sfumato.training.optimisation import cosine_decay, ema_update, set_learning_rate

_TRAIN = "training"
_ENCODER = "encoder"
_GRADIENT = "gradient"
_PRIOR = "prior"
_CHOICES = {"posterior_init": ("zero", "random", "encoder"), "conditioning": ("first layer", "input", "decoder")}


@dataclass(frozen=True)
class DP2VAE(Method):
    """A decoder trained on posteriors that each record fits for itself (after Jiang et al., 2022).

    Guarantee: ``steps`` noisy gradients over Poisson batches, under adding or removing one unit. A record in the batch
    first takes ``inner_steps`` steps on its own ELBO to fit its own posterior; the gradient of the decoder at
    ``draws`` codes of that posterior is clipped once. The posterior is private state of its record: written from that
    record and released weights, read for that record's gradient. The ``shard`` variant keeps an encoder for each shard
    and clips the gradient of a whole shard; it is accounted for under replacing one unit.

    Differs from the paper: no encoder is shared between records or shards, because a shared encoder carries each
    record into the gradients of all others; the released weights are an exponential moving average; the prior over
    codes is fitted by one more noisy sum. The paper's algorithm is ``dp2-vae-published``.

    >>> from sfumato.privacy import Budget
    >>> [event.name for event in DP2VAE(steps=10).plan(Budget(epsilon=10, delta=1e-5)).events]
    ['training', 'prior']
    """

    name: ClassVar[str] = "dp2-vae"
    paper: ClassVar[str] = "Jiang, Zhang, Karami, Chen, Shao, Yu: DP²-VAE (2022)"
    variants: ClassVar[Mapping[str, str]] = {
        "record": "each record has a posterior of its own",
        "shard": "certified too: the records of a shard share an encoder, and a shard has one clipped gradient",
    }

    sampling_rate: float = 0.1
    steps: int = 300
    latent_dim: int = 8
    width: int = 32
    conditioning: str = "first layer"
    clip_norm: float = 0.1
    draws: int = 1
    inner_steps: int = 4
    inner_learning_rate: float = 0.1
    kl_weight: float = 1.0
    posterior_init: str = "zero"
    encoder_steps: int = 50
    encoder_clip_norm: float = 0.1
    learning_rate: float = 0.015
    final_learning_rate_factor: float = 0.3
    ema_decay: float = 0.9
    shards: int = 10_000
    prior_noise: float = 3.0
    prior_clip_norm: float = 2.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, _CHOICES)
        check_ema_decay(self.ema_decay)

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(
            variant=variant,
            sampling_rate=0.8 if variant == "shard" else 0.6,
            steps=2,
            latent_dim=3,
            width=2,
            clip_norm=0.01,
            draws=2,
            inner_steps=2,
            encoder_steps=1,
            ema_decay=0.5,
            prior_clip_norm=1.0,
            shards=2,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """The decoder's gradients, with those of an initial encoder and the moments of the prior where wanted."""
        gradient, rate = (Block(_GRADIENT),), self.sampling_rate
        train = SubsampledGaussian(_TRAIN, gradient, sampling_rate=rate, steps=self.steps)
        if self.variant == "shard":
            return (replace(train, shards=self.shards),)
        events = [train]
        if self.posterior_init == "encoder":
            events.insert(0, SubsampledGaussian(_ENCODER, gradient, sampling_rate=rate, steps=self.encoder_steps))
        if self.prior_noise > 0:
            events.append(SubsampledGaussian(_PRIOR, (Block(_PRIOR, self.prior_noise),)))
        return tuple(events)

    def build(self, shape: Shape, classes: int) -> LatentGenerator:
        """The decoder, or one for each class, with the prior over codes."""
        decoder: Decoder | PerClass = self._decoder(shape, classes)
        if self.conditioning == "decoder":
            decoder = PerClass([self._decoder(shape, 0) for _ in range(classes)])
        return LatentGenerator(decoder, classes, self.latent_dim)

    def _decoder(self, shape: Shape, labels: int) -> Decoder:
        per_label = self.conditioning == "first layer" and labels > 0
        channels = channels_of(shape, self.width)
        return Decoder(
            shape, latent_dim=self.latent_dim, channels=channels, labels=labels, first_layer_per_label=per_label
        )

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model, average = (self.build(curator.shape, len(curator.classes)).to(curator.device) for _ in range(2))
        average.load_state_dict(model.state_dict())
        average.requires_grad_(False)
        if self.variant == "shard":
            self._train(curator, model, average, self._shard_gradient(curator, model))
            return average, None
        encoder = self._initial_encoder(curator)
        # Mean, log standard deviation, and whether the record has been in a batch before.
        state = curator.private_state("posteriors", (2 * self.latent_dim + 1,))

        def gradient(step: Step) -> NoisyGradient:
            step.update(state, self._refining(model.decoder, encoder))
            return step.noisy_gradient(
                _GRADIENT, model.decoder, self.loss, clip_norm=self.clip_norm, draws=self.draws, state=state
            )

        self._train(curator, model, average, gradient)
        for step in curator.steps(_PRIOR, keep={"average": average}) if self.prior_noise > 0 else ():
            step.update(state, self._refining(average.decoder, encoder))
            moments = functools.partial(posterior_moments, latent_dim=self.latent_dim)
            average.fit_prior(
                step.noisy_sum(_PRIOR, moments, clip_norm=self.prior_clip_norm, by_class=True, state=state)
            )
        return average, None

    def _train(
        self,
        curator: Curator,
        model: LatentGenerator,
        average: LatentGenerator,
        gradient: Callable[[Step], NoisyGradient],
    ) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate, fused=True)
        for step in curator.steps(_TRAIN, keep={"model": model, "optimizer": optimizer, "average": average}):
            factor = cosine_decay(step.index / self.steps, final=self.final_learning_rate_factor)
            set_learning_rate(optimizer, self.learning_rate * factor)
            # Adam is invariant to the scale of the gradient; the public clip norm brings it to order 1.
            (gradient(step) / self.clip_norm).apply(optimizer)
            ema_update(average, model, index=step.index, decay=self.ema_decay)

    def _shard_gradient(self, curator: Curator, model: LatentGenerator) -> Callable[[Step], NoisyGradient]:
        """Every sampled shard trains its own encoder for some steps; then its rows give one clipped gradient."""
        encoder = ShardEncoder(curator.shape, latent_dim=self.latent_dim, classes=len(curator.classes))
        state = curator.private_state("encoders", encoder.shape, shards=self.shards)

        def train_encoders(images: Tensor, labels: Tensor, shares: Tensor, random: Draws, weights: Tensor) -> Tensor:
            rows, flat = torch.nan_to_num(images.flatten(0, 1), nan=0.0, posinf=1.0, neginf=0.0), labels.flatten()
            noises = random.normal("inner", self.inner_steps, self.latent_dim)
            return encoder.trained(
                weights,
                decoder_for(model.decoder, flat),
                rows,
                flat,
                shares,
                noises,
                learning_rate=self.inner_learning_rate,
                kl_weight=self.kl_weight,
            )

        def loss(decoder: Decoder, images: Tensor, labels: Tensor, random: Draws, weights: Tensor) -> Tensor:
            images = torch.nan_to_num(images, nan=0.0, posinf=1.0, neginf=0.0)
            posterior = encoder.posterior(encoder.features(images, labels)[:, None], weights)
            code = reparametrise(posterior, random.normal("latent", self.latent_dim))
            return bernoulli_nll(decoder(code, labels), images)

        def gradient(step: Step) -> NoisyGradient:
            step.update(state, train_encoders)
            return step.noisy_gradient(
                _GRADIENT, model.decoder, loss, clip_norm=self.clip_norm, draws=self.draws, state=state
            )

        return gradient

    def _initial_encoder(self, curator: Curator) -> Encoder | None:
        """The encoder from which posteriors start: none, a random one, or one trained by DP-SGD."""
        if self.posterior_init == "zero":
            return None
        shape, labels = curator.shape, len(curator.classes)
        channels = channels_of(shape, self.width)
        encoder = Encoder(shape, latent_dim=self.latent_dim, channels=channels, labels=labels).to(curator.device)
        if self.posterior_init == "random":
            return encoder.requires_grad_(False)
        vae = ConvolutionalVAE(encoder, self._decoder(shape, labels)).to(curator.device)
        optimizer = torch.optim.Adam(vae.parameters(), lr=self.learning_rate)
        clip_norm = {"encoder": self.encoder_clip_norm, "decoder": self.encoder_clip_norm}

        def loss(model: ConvolutionalVAE, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            negative_elbo: Tensor = model(images, labels, random.normal("latent", self.latent_dim))
            return negative_elbo

        for step in curator.steps(_ENCODER, keep={"both": vae, "optimizer": optimizer}):
            gradient = step.noisy_gradient(_GRADIENT, vae, loss, clip_norm=clip_norm, draws=self.draws)
            (gradient / self.encoder_clip_norm).apply(optimizer)
        return encoder.requires_grad_(False)

    def _refining(self, decoder: nn.Module, encoder: Encoder | None) -> Callable[..., Tensor]:
        def refine(images: Tensor, labels: Tensor, random: Draws, state: Tensor) -> Tensor:
            return self.refine(decoder_for(decoder, labels), encoder, images, labels, random, state)

        return refine

    def refine(
        self, decode: Decode, encoder: Encoder | None, images: Tensor, labels: Tensor, random: Draws, state: Tensor
    ) -> Tensor:
        """The private state of each row after ``inner_steps`` steps on its own ELBO."""
        posterior, seen = state[:, :-1].unflatten(1, (2, self.latent_dim)), state[:, -1:]
        if encoder is not None:
            with torch.no_grad():
                posterior = torch.where(seen[:, :, None] > 0, posterior, encoder(images, labels))
        noises = random.normal("inner", self.inner_steps, self.latent_dim)
        posterior = fit_posteriors(
            posterior, decode, images, noises, learning_rate=self.inner_learning_rate, kl_weight=self.kl_weight
        )
        return torch.cat([posterior.flatten(1), torch.ones_like(seen)], dim=1)

    def loss(self, model: Decoder, images: Tensor, labels: Tensor, random: Draws, state: Tensor) -> Tensor:
        """The part of a record's ELBO that depends on the decoder: its reconstruction loss, ``[B]``."""
        posterior = state[:, :-1].unflatten(1, (2, self.latent_dim))
        code = reparametrise(posterior, random.normal("latent", self.latent_dim))
        return bernoulli_nll(model(code, labels), images)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        model = expected(model, LatentGenerator)
        return torch.sigmoid(decoder_for(model.decoder, labels)(model.draw(labels, temperature=self.temperature)))
