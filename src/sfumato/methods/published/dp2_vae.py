"""DP²-VAE as published: an encoder for each subset of the records, trained without noise.

An encoder has seen every record of its subset, so each record moves the gradients of all others, and a clip norm per
record bounds nothing. The algorithm needs the raw records and carries no guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from sfumato.methods.base import Method, check_choices, expected
from sfumato.methods.parts.record_posteriors import LatentGenerator
from sfumato.methods.published import RawRecords
from sfumato.networks.pixels import Shape
from sfumato.networks.vae import ConvolutionalVAE, Decoder, Encoder, channels_of
from sfumato.privacy import Block, Budget, Counts, Curator, Plan, SubsampledGaussian
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.privacy.randomness import Draws
from sfumato.training.optimisation import adam_update

Weights = dict[str, Tensor]

_DELTA = 1e-5  # of the paper's claims
_BETA2 = 0.999
_STACK = 16  # models that are pre-trained side by side, so that their moments fit into memory


@dataclass(frozen=True)
class DP2VAEPublished(Method):
    """Both stages of DP²-VAE (Jiang et al., 2022), Algorithms 1 and 2.

    Guarantee: none. The noise is the one that the paper's proof asks for at ``claimed_epsilon``; the proof bounds the
    sensitivity of a sum by twice the clip norm, which an encoder shared by the records of a subset invalidates.

    Differs from the paper: nothing that is known; the batch size and the iterations are not in the paper. With
    ``encoder_update = "batch"`` an encoder takes one step with the mean of the clipped gradients of a batch, which is
    faster; in Algorithm 2 it takes one after every record. ``latent_dim = 0`` stands for the paper's code lengths, 8
    for grey images and 16 for colour.

    >>> from sfumato.privacy import NoGuarantee
    >>> DP2VAEPublished().plan(NoGuarantee()).events
    ()
    """

    name: ClassVar[str] = "dp2-vae-published"
    paper: ClassVar[str] = "Jiang, Zhang, Karami, Chen, Shao, Yu: DP²-VAE (2022)"
    variants: ClassVar[Mapping[str, str]] = {
        "published": "encoders trained on subsets without noise: raw access, no guarantee"
    }
    raw_access: ClassVar[bool] = True
    paper_settings: ClassVar[Mapping[str, Any]] = {"encoders": 1000, "width": 512, "learning_rate": 1e-4}

    latent_dim: int = 0
    width: int = 512
    encoders: int = 1000
    pretraining_steps: int = 100
    train_encoders: bool = True
    encoder_update: str = "record"
    iterations: int = 10_000
    batch_size: int = 60
    clip_norm: float = 0.1
    learning_rate: float = 1e-4
    claimed_epsilon: float = 10.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"encoder_update": ("record", "batch")})

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(
            variant=variant,
            latent_dim=3,
            width=4,
            encoders=2,
            pretraining_steps=5,
            iterations=2,
            clip_norm=0.01,
            claimed_epsilon=1.0,
        )

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return ()

    def claim(self) -> dict[str, Any]:
        return {"epsilon": self.claimed_epsilon, "delta": _DELTA, "by": self.paper}

    def code_length(self, shape: Shape) -> int:
        """The number of latent dimensions for images of this shape."""
        return self.latent_dim or (8 if shape[0] == 1 else 16)

    def build(self, shape: Shape, classes: int) -> LatentGenerator:
        """The decoder, with a standard normal prior."""
        return LatentGenerator(self._decoder(shape, classes), classes, self.code_length(shape))

    def _decoder(self, shape: Shape, classes: int) -> Decoder:
        channels = channels_of(shape, self.width, narrowing=True)
        return Decoder(shape, latent_dim=self.code_length(shape), channels=channels, labels=classes)

    def _vae(self, shape: Shape, classes: int) -> ConvolutionalVAE:
        channels = channels_of(shape, self.width, narrowing=True)
        encoder = Encoder(shape, latent_dim=self.code_length(shape), channels=channels, labels=classes)
        return ConvolutionalVAE(encoder, self._decoder(shape, classes))

    def noise_multiplier(self) -> float:
        """The noise for ``claimed_epsilon`` by the paper's proof: one subset in ``encoders`` is sampled each time."""
        rate, steps = 1 / self.encoders, self.iterations
        claimed = SubsampledGaussian("claimed", (Block("gradient"),), sampling_rate=rate, steps=steps)
        return Plan.calibrated((claimed,), Budget(self.claimed_epsilon, _DELTA)).events[0].noise_multiplier

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Algorithm 1 for the encoders, then Algorithm 2 for the decoder."""
        # Two sets of initial weights are drawn, of which seeded runs keep the bits.
        released, _ = (self.build(curator.shape, len(curator.classes)).to(curator.device) for _ in range(2))
        records = RawRecords(curator, "DP²-VAE's encoders are trained on the records without noise, and shared by them")
        subsets = _subsets(len(records), self.encoders)
        vae = self._vae(curator.shape, len(curator.classes)).to(curator.device)
        if subsets:
            training = _Training(self, curator, records, vae, subsets)
            training.pretrain()
            training.train_decoder(self.noise_multiplier())
        released.decoder.load_state_dict(vae.decoder.state_dict())
        return released, None

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        model = expected(model, LatentGenerator)
        return torch.sigmoid(model.decoder(model.draw(labels, temperature=self.temperature), labels))


class StackedAdam:
    """Adam for stacked weights, of which all models or a single one can take a step."""

    def __init__(self, weights: Mapping[str, Tensor], count: int) -> None:
        """Start the moving averages of ``count`` models at zero."""
        self.exp_avg = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.exp_avg_sq = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.taken = torch.zeros(count, device=next(iter(weights.values())).device)

    @torch.no_grad()
    def step(
        self, weights: Weights, gradient: Mapping[str, Tensor], learning_rate: float, *, index: int | None = None
    ) -> None:
        """Move all models, or the one at ``index``, whose gradient then has no first dimension."""
        place = slice(None) if index is None else slice(index, index + 1)
        self.taken[place] += 1
        for name, value in weights.items():
            change, exp_avg, exp_avg_sq = adam_update(
                gradient[name] if index is None else gradient[name][None],
                self.exp_avg[name][place],
                self.exp_avg_sq[name][place],
                step=self.taken[place].view(-1, *[1] * (value.ndim - 1)),
                learning_rate=learning_rate,
                beta2=_BETA2,
            )
            self.exp_avg[name][place], self.exp_avg_sq[name][place] = exp_avg, exp_avg_sq
            value[place] -= change


def stacked_weights(model: nn.Module, count: int) -> Weights:
    """Initial weights for ``count`` models, uniform within the range of the template's, layer by layer."""
    return {
        name: (2.0 * torch.rand(count, *value.shape, device=value.device, dtype=value.dtype) - 1.0) * value.abs().max()
        for name, value in model.state_dict().items()
    }


def _subsets(records: int, count: int) -> list[Tensor]:
    """The rows of every subset. Each record's subset is drawn independently, so removing one moves no other."""
    random = np.random.default_rng(int(torch.randint(2**62, ())))
    drawn = torch.from_numpy(random.integers(count, size=records))
    return [rows for number in range(count) if len(rows := (drawn == number).nonzero()[:, 0])]


class _Training:
    """The two stages on the raw records."""

    def __init__(
        self,
        method: DP2VAEPublished,
        curator: Curator,
        records: RawRecords,
        vae: ConvolutionalVAE,
        subsets: list[Tensor],
    ) -> None:
        self.method, self.curator, self.records, self.vae, self.subsets = method, curator, records, vae, subsets
        self.encoders = stacked_weights(vae.encoder, len(subsets))
        self.code_length = method.code_length(curator.shape)

    def pretrain(self) -> None:
        """Algorithm 1: every encoder on its own subset."""
        if not self.method.pretraining_steps:
            return
        stacks = range(0, len(self.subsets), _STACK)
        for start in self.curator.track(stacks, "pre-training", len(stacks)):
            trained = self._pretrained(self.subsets[start : start + _STACK])
            for name, value in trained.items():
                self.encoders[name][start : start + _STACK] = value

    def _pretrained(self, subsets: list[Tensor]) -> Weights:
        """The weights of a stack of encoders, each trained with a new decoder of its own."""
        weights = stacked_weights(self.vae, len(subsets))
        optimizer = StackedAdam(weights, len(subsets))
        for _ in range(self.method.pretraining_steps):
            # With replacement: a subset that is smaller than the batch can fill one.
            rows = torch.stack([own[torch.randint(len(own), (self.method.batch_size,))] for own in subsets])
            images, labels = self.records.take(rows)
            noise = torch.randn(*rows.shape, self.code_length, device=images.device, dtype=images.dtype)
            clipped = _clip_halves(self._stacked_gradients(weights, images, labels, noise), self.method.clip_norm)
            optimizer.step(weights, clipped, self.method.learning_rate)
        prefix = "encoder."
        return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}

    def _stacked_gradients(self, weights: Weights, *batches: Tensor) -> Weights:
        def negative_elbo(own: Weights, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
            rows: Tensor = functional_call(self.vae, own, (images, labels, noise))
            return rows.mean()

        single: Callable[..., Weights] = grad(negative_elbo)
        # One by one: vmap makes grouped convolutions of the stack, which take twice as long on a CPU.
        found = [
            single({name: value[place] for name, value in weights.items()}, *(batch[place] for batch in batches))
            for place in range(len(batches[0]))
        ]
        return {name: torch.stack([one[name] for one in found]) for name in weights}

    def train_decoder(self, noise_multiplier: float) -> None:
        """Algorithm 2: the decoder by noisy clipped sums, the sampled encoder by its own sums without noise."""
        method, vae = self.method, self.vae
        clip_norm = {"decoder": method.clip_norm} | ({"encoder": method.clip_norm} if method.train_encoders else {})
        vae.encoder.requires_grad_(method.train_encoders)
        decoder = torch.optim.Adam(vae.decoder.parameters(), lr=method.learning_rate)
        optimizer = StackedAdam(self.encoders, len(self.subsets))
        for iteration in self.curator.track(range(method.iterations), "decoder", method.iterations):
            chosen = int(torch.randint(len(self.subsets), ()))
            batch = self._batch(self.subsets[chosen], iteration)
            vae.encoder.load_state_dict({name: value[chosen] for name, value in self.encoders.items()})
            one_by_one = method.train_encoders and method.encoder_update == "record"
            sums = (
                self._record_by_record(batch, optimizer, chosen)
                if one_by_one
                else clipped_sum(vae, self._loss, batch, clip_norm)
            )
            self._noisy_decoder_gradient(sums, noise_multiplier)
            decoder.step()
            if method.train_encoders and not one_by_one:
                rows = len(batch.images)
                gradient = {n: (sums[f"encoder.{n}"] / rows).to(value.dtype) for n, value in self.encoders.items()}
                optimizer.step(self.encoders, gradient, method.learning_rate, index=chosen)
        vae.encoder.requires_grad_(True)

    def _record_by_record(self, batch: Batch, optimizer: StackedAdam, chosen: int) -> Weights:
        """Lines 8 to 13: the encoder takes a step after every record, so the next one's gradients depend on it."""
        vae, clip_norm = self.vae, self.method.clip_norm
        names, parameters = zip(*vae.named_parameters(), strict=True)
        own, noise = dict(vae.encoder.named_parameters()), batch.random.normal("latent", self.code_length)
        sums: Weights = {}
        for row in range(len(batch.images)):
            single = slice(row, row + 1)
            images, labels = batch.images[single], batch.labels[single]
            found = torch.autograd.grad(vae(images, labels, noise[single]).sum(), parameters)
            gradient = _clip_halves({name: part[None] for name, part in zip(names, found, strict=True)}, clip_norm)
            for name, part in gradient.items():
                if name.startswith("decoder."):
                    sums[name] = sums[name] + part[0] if name in sums else part[0]
            step = {name: gradient[f"encoder.{name}"][0] for name in own}
            optimizer.step(self.encoders, step, self.method.learning_rate, index=chosen)
            with torch.no_grad():
                for name, parameter in own.items():
                    parameter.copy_(self.encoders[name][chosen])
        return sums

    def _batch(self, own: Tensor, iteration: int) -> Batch:
        size = self.method.batch_size
        rows = own[torch.randperm(len(own))[:size]] if len(own) > size else own
        images, labels = self.records.take(rows)
        random = Draws((iteration, 0), rows.to(images.device), torch.zeros_like(labels))
        return Batch(images, labels, random, torch.ones(len(rows), 1, device=images.device, dtype=images.dtype))

    def _loss(self, model: ConvolutionalVAE, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        negative_elbo: Tensor = model(images, labels, random.normal("latent", self.code_length))
        return negative_elbo

    def _noisy_decoder_gradient(self, sums: Mapping[str, Tensor], noise_multiplier: float) -> None:
        """Leave the noisy sum, divided by the batch size, in the decoder's ``grad``."""
        parameters = dict(self.vae.decoder.named_parameters())
        total = torch.cat([sums[f"decoder.{name}"].flatten() for name in parameters])
        sensitivity = 2.0 * self.method.clip_norm
        noisy = self.curator.claimed_sum(
            "decoder", total, claimed_sensitivity=sensitivity, noise_multiplier=noise_multiplier
        )
        pieces = noisy.split([parameter.numel() for parameter in parameters.values()])
        for parameter, piece in zip(parameters.values(), pieces, strict=True):
            parameter.grad = (piece / self.method.batch_size).view_as(parameter).to(parameter.dtype)


def _clip_halves(gradients: Weights, clip_norm: float) -> Weights:
    """Gradients of stacked models, clipped for encoder and decoder apart."""
    for half in ("encoder.", "decoder."):
        names = [name for name in gradients if name.startswith(half)]
        norm = torch.stack([gradients[name].flatten(1).square().sum(1) for name in names]).sum(0).sqrt()
        factor = (clip_norm / norm.clamp(min=1e-30)).clamp(max=1.0).nan_to_num()
        for name in names:
            gradients[name] = gradients[name] * factor.view(-1, *[1] * (gradients[name].ndim - 1))
    return {name: value.nan_to_num() for name, value in gradients.items()}
