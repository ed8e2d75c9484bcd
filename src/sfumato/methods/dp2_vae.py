"""DP²-VAE: a released decoder, and posteriors that never leave; here they never meet another record either."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method, Shape
from sfumato.methods.parts.record_posteriors import Decoding, Generator, LinearEncoder, decoding, moments, refined
from sfumato.methods.published import dp2_vae as shared_encoders
from sfumato.networks.variational import Autoencoding, Decoder, Encoder, channels_of, drawn, reconstruction
from sfumato.privacy import Block, Budget, Counts, Curator, NoisyGradient, Plan, Step, SubsampledGaussian
from sfumato.privacy.gradients import PerClass
from sfumato.privacy.randomness import Draws
from sfumato.training.ema import ema_update
from sfumato.training.schedules import cosine_decay

_TRAIN = "training"
_ENCODER = "encoder"
_GRADIENT = "gradient"
_PRIOR = "prior"
_CLAIMED_DELTA = 1e-5
_CONDITIONS = ("first layer", "input", "decoder")
_STARTS = ("zero", "random", "encoder")


@dataclass(frozen=True)
class DP2VAE(Method):
    """A decoder learned from codes that each record finds for itself (after Jiang et al., 2022).

    Guarantee: ``steps`` noisy sums over Poisson batches; a record whose coin came up first moves its own posterior by
    ``inner_steps`` steps on its own evidence bound, then gives the decoder's gradient at ``draws`` codes of it,
    clipped once. The posterior is that record's memory: written from its own row and released weights, read for its
    own gradient. Adding or removing one unit.
    Differs from the paper: no encoder is shared by records, because one that is carries each of them into the
    gradients of all others; the average of the weights over the last steps is released.

    >>> plan = DP2VAE(sampling_rate=0.1, steps=300).plan(Budget(epsilon=10, delta=1e-5))
    >>> 1.11 < plan.event("training").noise_multiplier < 1.14
    True
    """

    name: ClassVar[str] = "dp2-vae"
    paper: ClassVar[str] = "Jiang, Zhang, Karami, Chen, Shao, Yu: DP²-VAE (2022)"
    variants: ClassVar[Mapping[str, str]] = {
        "record": "each record has a posterior of its own",
        "shard": "certified too: records share an encoder within a shard, which speaks with one clipped voice",
        "published": "encoders trained on subsets without noise, as printed: raw access, no guarantee",
    }
    raw_variants: ClassVar[frozenset[str]] = frozenset({"published"})

    # Certified: the decoder's training, the posteriors', and what is drawn from
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
    # As published
    encoders: int = 1000
    published_width: int = 512
    pretraining_steps: int = 100
    train_encoders: bool = True
    iterations: int = 10_000
    batch_size: int = 60
    published_clip_norm: float = 0.1
    published_learning_rate: float = 1e-3
    claimed_epsilon: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, allowed in (("posterior_init", _STARTS), ("conditioning", _CONDITIONS)):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} must be one of {', '.join(allowed)}, not {getattr(self, field)!r}")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must lie in [0, 1), not {self.ema_decay:g}; 0 releases the last weights")

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        shard = variant == "shard"
        return cls(
            variant=variant,
            sampling_rate=0.8 if shard else 0.6,
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
            encoders=2,
            published_width=4,
            pretraining_steps=5,
            iterations=2,
            batch_size=60,
            published_clip_norm=0.01,
            claimed_epsilon=1.0,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        if self.variant == "published":
            return ()
        encoder = SubsampledGaussian(
            _ENCODER, (Block(_GRADIENT),), sampling_rate=self.sampling_rate, steps=self.encoder_steps
        )
        train = SubsampledGaussian(_TRAIN, (Block(_GRADIENT),), sampling_rate=self.sampling_rate, steps=self.steps)
        if self.variant == "shard":
            return (replace(train, shards=self.shards),)
        events = [encoder, train] if self.posterior_init == "encoder" else [train]
        if self.prior_noise > 0:
            events.append(SubsampledGaussian(_PRIOR, (Block(_PRIOR, self.prior_noise),)))
        return tuple(events)

    def build(self, shape: Shape, classes: int) -> Generator:
        if self.variant == "published":
            channels = channels_of(shape, self.published_width, narrowing=True)
            return Generator(
                Decoder(shape, code=self.latent_dim, channels=channels, labels=classes), classes, self.latent_dim
            )
        decoder: Decoder | PerClass = self._decoder(shape, classes)
        if self.conditioning == "decoder":
            decoder = PerClass([self._decoder(shape, 0) for _ in range(classes)])
        return Generator(decoder, classes, self.latent_dim)

    def _decoder(self, shape: Shape, labels: int) -> Decoder:
        channels, own_first = channels_of(shape, self.width), self.conditioning == "first layer" and labels > 0
        return Decoder(shape, code=self.latent_dim, channels=channels, labels=labels, own_first=own_first)

    def _encoder(self, shape: Shape, labels: int) -> Encoder:
        return Encoder(shape, code=self.latent_dim, channels=channels_of(shape, self.width), labels=labels)

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model, average = (self.build(curator.shape, len(curator.classes)).to(curator.device) for _ in range(2))
        average.load_state_dict(model.state_dict())
        average.requires_grad_(False)
        if self.variant == "published":
            return self._as_published(curator, model), None
        if self.variant == "shard":
            self._train(curator, model, average, self._shards(curator, model))
            return average, None
        encoder = self._start(curator)
        # Mean and log-deviation, and whether the record was ever here.
        state = curator.private_state("posteriors", (2 * self.latent_dim + 1,))

        def ask(step: Step) -> NoisyGradient:
            step.update(state, self._refining(model.decoder, encoder))
            options: dict[str, Any] = {"clip_norm": self.clip_norm, "draws": self.draws, "state": state}
            return step.noisy_gradient(_GRADIENT, model.decoder, self.loss, **options)

        self._train(curator, model, average, ask)
        for step in curator.steps(_PRIOR) if self.prior_noise > 0 else ():
            step.update(state, self._refining(average.decoder, encoder))
            features = functools.partial(moments, code=self.latent_dim)
            average.learn_prior(
                step.noisy_sum(_PRIOR, features, clip_norm=self.prior_clip_norm, by_class=True, state=state)
            )
        return average, None

    def _as_published(self, curator: Curator, model: Generator) -> Generator:
        """Both stages of the paper, with the noise that gives the ε it claims by the proof it gives."""
        labels, channels = len(curator.classes), channels_of(curator.shape, self.published_width, narrowing=True)

        def both() -> Autoencoding:
            encoder = Encoder(curator.shape, code=self.latent_dim, channels=channels, labels=labels)
            return Autoencoding(encoder, Decoder(curator.shape, code=self.latent_dim, channels=channels, labels=labels))

        # A subset in K is asked each time, and the sum is said to move by twice the clip.
        asked = SubsampledGaussian(
            "claimed", (Block(_GRADIENT),), sampling_rate=1 / self.encoders, steps=self.iterations
        )
        claimed = Plan.calibrated((asked,), Budget(self.claimed_epsilon, _CLAIMED_DELTA)).events[0].noise_multiplier
        recipe = shared_encoders.Recipe(
            encoders=self.encoders,
            pretraining=self.pretraining_steps,
            train_encoders=self.train_encoders,
            iterations=self.iterations,
            batch=self.batch_size,
            clip=self.published_clip_norm,
            learning_rate=self.published_learning_rate,
            noise_multiplier=claimed,
        )
        model.decoder.load_state_dict(shared_encoders.train(curator, both, recipe).decoder.state_dict())
        return model

    def claim(self) -> dict[str, Any] | None:
        if self.variant != "published":
            return None
        return {"epsilon": self.claimed_epsilon, "delta": _CLAIMED_DELTA, "by": self.paper}

    def _train(
        self, curator: Curator, model: Generator, average: Generator, ask: Callable[[Step], NoisyGradient]
    ) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate, fused=True)
        for step in curator.steps(_TRAIN, keep={"model": model, "optimizer": optimizer, "average": average}):
            optimizer.param_groups[0]["lr"] = self.learning_rate * cosine_decay(
                step.index / self.steps, final=self.final_learning_rate_factor
            )
            # Adam does not see the scale; the clip is public and makes it one.
            (ask(step) / self.clip_norm).apply(optimizer)
            ema_update(average, model, index=step.index, decay=self.ema_decay)

    def _shards(self, curator: Curator, model: Generator) -> Callable[[Step], NoisyGradient]:
        """Every shard whose coin came up trains its own encoder a little; then its rows give one gradient together."""
        encoder = LinearEncoder(curator.shape, code=self.latent_dim, classes=len(curator.classes))
        memory = curator.private_state("encoders", encoder.shape, shards=self.shards)

        def learn(images: Tensor, labels: Tensor, shares: Tensor, random: Draws, weights: Tensor) -> Tensor:
            rows, flat = _pixels(images.flatten(0, 1)), labels.flatten()
            noises = random.normal("inner", self.inner_steps, self.latent_dim)
            options: dict[str, Any] = {"rate": self.inner_learning_rate, "weight": self.kl_weight}
            return encoder.learned(weights, decoding(model.decoder, flat), rows, flat, shares, noises, **options)

        def loss(decoder: Decoder, images: Tensor, labels: Tensor, random: Draws, weights: Tensor) -> Tensor:
            images = _pixels(images)
            posterior = encoder.posterior(encoder.features(images, labels)[:, None], weights)
            code = drawn(posterior, random.normal("latent", self.latent_dim))
            return reconstruction(decoder(code, labels), images)

        def ask(step: Step) -> NoisyGradient:
            step.update(memory, learn)
            options: dict[str, Any] = {"clip_norm": self.clip_norm, "draws": self.draws, "state": memory}
            return step.noisy_gradient(_GRADIENT, model.decoder, loss, **options)

        return ask

    def _refining(self, decoder: nn.Module, encoder: Encoder | None) -> Callable[..., Tensor]:
        def refine(images: Tensor, labels: Tensor, random: Draws, memory: Tensor) -> Tensor:
            return self.refine(decoding(decoder, labels), encoder, images, labels, random, memory)

        return refine

    def _start(self, curator: Curator) -> Encoder | None:
        """Where a posterior begins: nowhere in particular, or where a random or a DP-trained encoder puts it."""
        if self.posterior_init == "zero":
            return None
        labels = len(curator.classes)
        encoder = self._encoder(curator.shape, labels).to(curator.device)
        if self.posterior_init == "random":
            return encoder.requires_grad_(False)
        both = Autoencoding(encoder, self._decoder(curator.shape, labels)).to(curator.device)
        optimizer = torch.optim.Adam(both.parameters(), lr=self.learning_rate)
        clip = {"encoder": self.encoder_clip_norm, "decoder": self.encoder_clip_norm}

        def bound(model: Autoencoding, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return model(images, labels, random.normal("latent", self.latent_dim))

        for step in curator.steps(_ENCODER, keep={"both": both, "optimizer": optimizer}):
            gradient = step.noisy_gradient(_GRADIENT, both, bound, clip_norm=clip, draws=self.draws)
            (gradient / self.encoder_clip_norm).apply(optimizer)
        return encoder.requires_grad_(False)

    def refine(
        self, decode: Decoding, encoder: Encoder | None, images: Tensor, labels: Tensor, random: Draws, memory: Tensor
    ) -> Tensor:
        """Each row's posterior, some steps nearer to its own evidence bound's best."""
        posterior, seen = memory[:, :-1].unflatten(1, (2, self.latent_dim)), memory[:, -1:]
        if encoder is not None:
            with torch.no_grad():
                posterior = torch.where(seen[:, :, None] > 0, posterior, encoder(images, labels))
        noises = random.normal("inner", self.inner_steps, self.latent_dim)
        posterior = refined(posterior, decode, images, noises, rate=self.inner_learning_rate, weight=self.kl_weight)
        return torch.cat([posterior.flatten(1), torch.ones_like(seen)], dim=1)

    def loss(self, model: Decoder, images: Tensor, labels: Tensor, random: Draws, memory: Tensor) -> Tensor:
        """What the decoder has to do with a record's evidence bound: its reconstruction, one number per row."""
        posterior = memory[:, :-1].unflatten(1, (2, self.latent_dim))
        code = drawn(posterior, random.normal("latent", self.latent_dim))
        return reconstruction(model(code, labels), images)

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        if not isinstance(model, Generator):
            raise TypeError(f"a generator is needed, not {type(model).__name__}")
        return torch.sigmoid(decoding(model.decoder, labels)(model.draw(labels, temperature=self.temperature)))


def _pixels(images: Tensor) -> Tensor:
    """What is no number is made one: it would silence a whole shard."""
    return torch.nan_to_num(images, nan=0.0, posinf=1.0, neginf=0.0)
