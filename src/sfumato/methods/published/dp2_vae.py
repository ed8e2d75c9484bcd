"""DP²-VAE as published: an encoder for each subset of the records, trained without noise. It needs the raw records.

An encoder has seen every record of its subset, so each of them moves the gradients of all others, and a clip per record
bounds nothing. What this trains is released under no guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from sfumato.networks.variational import Autoencoding
from sfumato.privacy import Curator
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.privacy.randomness import Draws

Weights = dict[str, Tensor]

_FAST, _SLOW, _TINY = 0.9, 0.999, 1e-8
_ROOM = 0.25  # of a device's free memory is for a stack of models
_ON_CPU = 1 << 30  # bytes for a stack there
_COPIES = 8  # a model's weights, gradient, two moments, and about as much again for what a step computes


@dataclass(frozen=True)
class Recipe:
    """Algorithms 1 and 2, with what the paper leaves open said."""

    encoders: int
    pretraining: int
    train_encoders: bool
    iterations: int
    batch: int
    clip: float
    learning_rate: float
    noise_multiplier: float
    """Of the noise against the movement the paper claims, 2·clip for the sum."""


class Adam:
    """Adam for stacked weights, of which any slice may be moved alone."""

    def __init__(self, weights: Mapping[str, Tensor], count: int) -> None:
        self.fast = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.slow = {name: torch.zeros_like(value) for name, value in weights.items()}
        self.taken = torch.zeros(count, device=next(iter(weights.values())).device)

    @torch.no_grad()
    def step(self, weights: Weights, gradient: Mapping[str, Tensor], rate: float, *, at: int | None = None) -> None:
        """Move all models, or the one at ``at``, whose gradient then has no first dimension."""
        place: slice = slice(None) if at is None else slice(at, at + 1)
        self.taken[place] += 1
        for name, value in weights.items():
            change = gradient[name] if at is None else gradient[name][None]
            fast, slow = self.fast[name][place], self.slow[name][place]
            fast.lerp_(change, 1 - _FAST)
            slow.lerp_(change.square(), 1 - _SLOW)
            taken = self.taken[place].view(-1, *[1] * (value.ndim - 1))
            wide = (slow / (1 - _SLOW**taken)).sqrt() + _TINY
            value[place] -= rate * (fast / (1 - _FAST**taken)) / wide


def stacked(model: nn.Module, count: int) -> Weights:
    """Fresh weights for ``count`` models, drawn as torch draws the template's: uniform, as far as each layer's go."""
    return {
        name: (2.0 * torch.rand(count, *value.shape, device=value.device, dtype=value.dtype) - 1.0) * value.abs().max()
        for name, value in model.state_dict().items()
    }


def train(curator: Curator, build: Callable[[], Autoencoding], recipe: Recipe) -> Autoencoding:
    """Both stages. What comes back holds the decoder, and the encoder that was used last."""
    pixels, classes = curator.open("DP²-VAE's encoders are trained on the records without noise, and shared by them")
    images, labels = torch.as_tensor(pixels), torch.as_tensor(np.asarray(classes, dtype=np.int64))
    subsets = _subsets(len(images), recipe.encoders)
    model = build().to(curator.device)
    if not subsets:
        return model

    def take(rows: Tensor) -> tuple[Tensor, Tensor]:
        scale = 255.0 if images.dtype == torch.uint8 else 1.0
        found = images[rows].to(curator.device, torch.get_default_dtype()) / scale
        return found, labels[rows].to(curator.device)

    encoders = stacked(model.encoder, len(subsets))
    if recipe.pretraining:
        size = _stack_size(model, curator.device)
        stacks = range(0, len(subsets), size)
        for start in curator.track(stacks, "pre-training", len(stacks)):
            found = _pretrained(model, subsets[start : start + size], take, recipe)
            for name, value in found.items():
                encoders[name][start : start + size] = value
    _second_stage(curator, model, encoders, subsets, take, recipe)
    return model


def _subsets(records: int, count: int) -> list[Tensor]:
    """Every record's subset by a draw of its own, so that taking a record out deals no other one anew."""
    random = np.random.default_rng(int(torch.randint(2**62, ())))
    drawn = torch.from_numpy(random.integers(count, size=records))
    return [rows for number in range(count) if len(rows := (drawn == number).nonzero()[:, 0])]


def _stack_size(model: nn.Module, device: torch.device) -> int:
    free = _ON_CPU
    if device.type == "cuda":
        free = int(_ROOM * torch.cuda.mem_get_info(device)[0])
    size = sum(value.numel() * value.element_size() for value in model.parameters())
    return max(1, free // (_COPIES * size))


def _pretrained(
    model: Autoencoding, subsets: list[Tensor], take: Callable[[Tensor], tuple[Tensor, Tensor]], recipe: Recipe
) -> Weights:
    """Algorithm 1 for a stack of encoders at once, each with a new decoder of its own."""
    weights = stacked(model, len(subsets))
    optimizer = Adam(weights, len(subsets))
    code = model.encoder.code

    def bound(own: Weights, images: Tensor, labels: Tensor, noise: Tensor) -> Tensor:
        return functional_call(model, own, (images, labels, noise)).mean()

    gradients = torch.vmap(grad(bound))
    for _ in range(recipe.pretraining):
        # With replacement: a subset smaller than the batch can fill one all the same.
        rows = torch.stack([own[torch.randint(len(own), (recipe.batch,))] for own in subsets])
        images, labels = take(rows)
        noise = torch.randn(*rows.shape, code, device=images.device, dtype=images.dtype)
        found = gradients(weights, images, labels, noise)
        for half in ("encoder.", "decoder."):
            names = [name for name in found if name.startswith(half)]
            norm = torch.stack([found[name].flatten(1).square().sum(1) for name in names]).sum(0).sqrt()
            factor = (recipe.clip / norm.clamp(min=1e-30)).clamp(max=1.0).nan_to_num()
            for name in names:
                found[name] = found[name] * factor.view(-1, *[1] * (found[name].ndim - 1))
        optimizer.step(weights, {name: value.nan_to_num() for name, value in found.items()}, recipe.learning_rate)
    return {name.removeprefix("encoder."): value for name, value in weights.items() if name.startswith("encoder.")}


def _second_stage(
    curator: Curator,
    model: Autoencoding,
    encoders: Weights,
    subsets: list[Tensor],
    take: Callable[[Tensor], tuple[Tensor, Tensor]],
    recipe: Recipe,
) -> None:
    """Algorithm 2: the decoder by noisy clipped sums, the encoder that was asked by its own plain ones."""
    clip = {"decoder": recipe.clip} | ({"encoder": recipe.clip} if recipe.train_encoders else {})
    model.encoder.requires_grad_(recipe.train_encoders)
    decoder = torch.optim.Adam(model.decoder.parameters(), lr=recipe.learning_rate)
    optimizer = Adam(encoders, len(subsets)) if recipe.train_encoders else None
    names = [name for name, _ in model.decoder.named_parameters()]

    def loss(model: Autoencoding, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return model(images, labels, random.normal("latent", model.encoder.code))

    for iteration in curator.track(range(recipe.iterations), "decoder", recipe.iterations):
        chosen = int(torch.randint(len(subsets), ()))
        own = subsets[chosen]
        rows = own[torch.randperm(len(own))[: recipe.batch]] if len(own) > recipe.batch else own
        model.encoder.load_state_dict({name: value[chosen] for name, value in encoders.items()})
        images, labels = take(rows)
        random = Draws((iteration, 0), rows.to(images.device), torch.zeros_like(labels))
        batch = Batch(images, labels, random, torch.ones(len(rows), 1, device=images.device, dtype=images.dtype))
        sums = clipped_sum(model, loss, batch, clip)
        total = torch.cat([sums[f"decoder.{name}"].flatten() for name in names])
        noisy = curator.claimed_sum(
            "decoder",
            total,
            claimed_sensitivity=2.0 * recipe.clip,
            noise_multiplier=recipe.noise_multiplier,
        )
        pieces = noisy.split([sums[f"decoder.{name}"].numel() for name in names])
        for (_, parameter), piece in zip(model.decoder.named_parameters(), pieces, strict=True):
            parameter.grad = (piece / recipe.batch).view_as(parameter).to(parameter.dtype)
        decoder.step()
        if optimizer is not None:
            gradient = {name: (sums[f"encoder.{name}"] / len(rows)).to(value.dtype) for name, value in encoders.items()}
            optimizer.step(encoders, gradient, recipe.learning_rate, at=chosen)
    model.encoder.requires_grad_(True)
