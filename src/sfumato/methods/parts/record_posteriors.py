"""Variational posteriors that are fitted record by record or shard by shard, many of them at a time.

A posterior is a tensor ``[2, latent_dim]``, its mean and the logarithm of its standard deviation. It is private state:
written from its own record or shard and from released weights, and read for that record's or shard's gradient only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfumato.methods.parts.class_gaussians import smallest_count
from sfumato.networks.pixels import Shape, one_hot
from sfumato.networks.vae import bernoulli_nll, clamp_log_std, kl_to_normal, reparametrise
from sfumato.privacy.gradients import PerClass
from sfumato.training.optimisation import minimise

Decode = Callable[[Tensor], Tensor]
"""Latent codes of a batch's rows to logits of their pixels."""

_SMALLEST_VARIANCE = 0.05
_SMALLEST_COUNT = 10.0
_THUMBNAIL = 7  # pixels a side that the encoder of a shard sees


class LatentGenerator(nn.Module):
    """A decoder, and for each class a normal distribution over latent codes, the standard normal until it is fitted."""

    mean: Tensor
    root: Tensor

    def __init__(self, decoder: nn.Module, classes: int, latent_dim: int) -> None:
        super().__init__()
        self.decoder = decoder
        self.register_buffer("mean", torch.zeros(classes, latent_dim))
        self.register_buffer("root", torch.eye(latent_dim).repeat(classes, 1, 1))

    def draw(self, labels: Tensor, *, temperature: float) -> Tensor:
        """A latent code for each label, with torch's global generator."""
        noise = torch.randn(len(labels), self.mean.shape[1], device=labels.device, dtype=self.mean.dtype)
        return self.mean[labels] + temperature * torch.einsum("bij,bj->bi", self.root[labels], noise)

    def fit_prior(self, sums: Tensor) -> None:
        """Set mean and covariance from noisy sums of ``posterior_moments``, ``[classes, 1 + d + d²]``.

        A class whose noisy count is too small keeps the distribution that it had.
        """
        size = self.mean.shape[1]
        count = sums[:, :1]
        total = float(count.clamp(min=0.0).sum())
        known = count[:, 0] > smallest_count(total, len(count), least=_SMALLEST_COUNT)
        first, second = (sums[:, 1:] / count.clamp(min=1.0)).split([size, size * size], dim=1)
        mean, second = first * size**0.5, second.unflatten(1, (size, size)) * size
        covariance = (second + second.mT) / 2.0 - mean[:, :, None] * mean[:, None, :]
        # The noise can make a covariance indefinite, so its eigenvalues are bounded from below.
        values, vectors = torch.linalg.eigh(torch.where(known[:, None, None], covariance, torch.zeros_like(covariance)))
        root = vectors * values.clamp(min=_SMALLEST_VARIANCE).sqrt()[:, None, :]
        self.mean.copy_(torch.where(known[:, None], mean, self.mean))
        self.root.copy_(torch.where(known[:, None, None], root, self.root))


def posterior_moments(images: Tensor, labels: Tensor, random: object, state: Tensor, *, latent_dim: int) -> Tensor:
    """1, the posterior's mean and its second moments, each of about norm 1 for a standard normal code."""
    mean, log_std = state[:, :latent_dim], state[:, latent_dim : 2 * latent_dim]
    second = mean[:, :, None] * mean[:, None, :] + torch.diag_embed((2.0 * log_std).exp())
    return torch.cat([torch.ones_like(mean[:, :1]), mean / latent_dim**0.5, second.flatten(1) / latent_dim], dim=1)


def decoder_for(model: nn.Module, labels: Tensor) -> Decode:
    """The decoder as a function of codes; where each class has a decoder, all of them are evaluated side by side."""
    if not isinstance(model, PerClass):
        return lambda code: model(code, labels)
    states = [own.state_dict() for own in model.models]
    state = {name: torch.stack([own[name] for own in states]) for name in states[0]}
    first, rows = model[0], torch.arange(len(labels), device=labels.device)

    def one(state: dict[str, Tensor], code: Tensor) -> Tensor:
        found: Tensor = functional_call(first, state, (code, None))
        return found

    def decode(code: Tensor) -> Tensor:
        # Every decoder takes all codes: sorted by label, the shapes would follow from the labels of other records.
        images: Tensor = torch.vmap(one, in_dims=(0, None))(state, code)
        return images[labels, rows]

    return decode


def fit_posteriors(
    posterior: Tensor, decode: Decode, images: Tensor, noises: Tensor, *, learning_rate: float, kl_weight: float
) -> Tensor:
    """Posteriors ``[rows, 2, latent_dim]`` after one step on each row's own ELBO for each of its ``noises``.

    ``noises`` is ``[rows, steps, latent_dim]``, standard normal.
    """

    def loss(values: Tensor, number: int) -> Tensor:
        logits = decode(reparametrise(values, noises[:, number]))
        return (bernoulli_nll(logits, images) + kl_weight * kl_to_normal(values)).sum()

    return minimise(loss, posterior, steps=noises.shape[1], learning_rate=learning_rate, project=clamp_log_std)


class ShardEncoder:
    """The linear encoder of a shard: a thumbnail and the label to a posterior. Its weights are the shard's state."""

    def __init__(self, shape: Shape, *, latent_dim: int, classes: int) -> None:
        self.latent_dim, self.classes = latent_dim, classes
        self.inputs = shape[0] * min(_THUMBNAIL, shape[1]) * min(_THUMBNAIL, shape[2]) + classes + 1
        self.shape = (self.inputs, 2 * latent_dim)

    def features(self, images: Tensor, labels: Tensor) -> Tensor:
        """Inputs of the encoder, ``[rows, inputs]``, of about norm 1."""
        size = (min(_THUMBNAIL, images.shape[2]), min(_THUMBNAIL, images.shape[3]))
        pixels = nn.functional.adaptive_avg_pool2d(images, size).flatten(1) / size[0]
        return torch.cat([pixels, one_hot(labels, self.classes, pixels), torch.ones_like(pixels[:, :1])], dim=1)

    def posterior(self, features: Tensor, weights: Tensor) -> Tensor:
        """``[shards, rows, inputs]`` and ``[shards, inputs, 2 · latent_dim]`` to ``[shards · rows, 2, latent_dim]``."""
        return clamp_log_std((features @ weights).flatten(0, 1).unflatten(1, (2, self.latent_dim)))

    def trained(
        self,
        weights: Tensor,
        decode: Decode,
        images: Tensor,
        labels: Tensor,
        shares: Tensor,
        noises: Tensor,
        *,
        learning_rate: float,
        kl_weight: float,
    ) -> Tensor:
        """Each shard's weights after one step on the ELBO of its own rows for each of the ``noises``."""
        features = self.features(images, labels).unflatten(0, shares.shape)

        def loss(values: Tensor, number: int) -> Tensor:
            posterior = self.posterior(features, values)
            logits = decode(reparametrise(posterior, noises[:, number]))
            rows = bernoulli_nll(logits, images) + kl_weight * kl_to_normal(posterior)
            return torch.where(shares.flatten() > 0, rows * shares.flatten(), 0.0).sum()

        return minimise(loss, weights, steps=noises.shape[1], learning_rate=learning_rate)
