"""Posteriors that look for themselves: steps on a row's own evidence bound, many rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from sfumato.networks.variational import bounded, divergence, drawn, one_hot, reconstruction
from sfumato.privacy.gradients import PerClass

Decoding = Callable[[Tensor], Tensor]
"""Codes of a batch's rows → logits of their pixels."""

_SMALLEST_VARIANCE = 0.05
_COARSE = 7  # pixels a side that a shard's encoder looks at
_FAST, _SLOW, _TINY = 0.9, 0.99, 1e-8


class Generator(nn.Module):
    """A decoder, and for each class the normal law that its codes follow; a standard normal until it is learned."""

    mean: Tensor
    root: Tensor

    def __init__(self, decoder: nn.Module, classes: int, code: int) -> None:
        super().__init__()
        self.decoder = decoder
        self.register_buffer("mean", torch.zeros(classes, code))
        self.register_buffer("root", torch.eye(code).repeat(classes, 1, 1))

    def draw(self, labels: Tensor, *, temperature: float) -> Tensor:
        """A code for each label, with torch's global generator."""
        noise = torch.randn(len(labels), self.mean.shape[1], device=labels.device, dtype=self.mean.dtype)
        return self.mean[labels] + temperature * torch.einsum("bij,bj->bi", self.root[labels], noise)

    def learn_prior(self, sums: Tensor) -> None:
        """From noisy sums of ``moments``. A class of which little more than noise is known keeps what it had."""
        code = self.mean.shape[1]
        count = sums[:, :1]
        known = count[:, 0] > max(10.0, float(count.clamp(min=0.0).sum()) / (100 * len(count)))
        first, second = (sums[:, 1:] / count.clamp(min=1.0)).split([code, code * code], dim=1)
        mean, second = first * code**0.5, second.unflatten(1, (code, code)) * code
        covariance = (second + second.mT) / 2.0 - mean[:, :, None] * mean[:, None, :]
        # The noise may have made a covariance of it that none is.
        values, vectors = torch.linalg.eigh(torch.where(known[:, None, None], covariance, torch.zeros_like(covariance)))
        root = vectors * values.clamp(min=_SMALLEST_VARIANCE).sqrt()[:, None, :]
        self.mean.copy_(torch.where(known[:, None], mean, self.mean))
        self.root.copy_(torch.where(known[:, None, None], root, self.root))


def moments(images: Tensor, labels: Tensor, random: object, memory: Tensor, *, code: int) -> Tensor:
    """One, the posterior's mean and its second moments, for a code of usual length each of about norm one."""
    mean, spread = memory[:, :code], memory[:, code : 2 * code]
    second = mean[:, :, None] * mean[:, None, :] + torch.diag_embed((2.0 * spread).exp())
    return torch.cat([torch.ones_like(mean[:, :1]), mean / code**0.5, second.flatten(1) / code], dim=1)


def decoding(model: nn.Module, labels: Tensor) -> Decoding:
    """Each row's code through the decoder, or through that of its class; the classes go side by side."""
    if not isinstance(model, PerClass):
        return lambda code: model(code, labels)
    classes = len(model)
    counts = torch.bincount(labels, minlength=classes)
    deepest = max(1, int(counts.max()))
    order = torch.argsort(labels, stable=True)
    starts = counts.cumsum(0) - counts
    depth = torch.empty_like(labels)
    depth[order] = torch.arange(len(labels), device=labels.device) - starts[labels[order]]
    place = labels * deepest + depth
    weights, buffers = stack_module_state(list(model.models))
    weights = {name: value.detach() for name, value in weights.items()}
    first = model[0]

    def one(weights: dict[str, Tensor], code: Tensor) -> Tensor:
        found: Tensor = functional_call(first, (weights, buffers), (code, None))
        return found

    def decode(code: Tensor) -> Tensor:
        padded = code.new_zeros(classes * deepest, code.shape[1]).index_copy(0, place, code)
        images: Tensor = torch.vmap(one)(weights, padded.view(classes, deepest, -1))
        return images.flatten(0, 1)[place]

    return decode


def improved(
    start: Tensor,
    bound: Callable[[Tensor, int], Tensor],
    *,
    steps: int,
    rate: float,
    within: Callable[[Tensor], Tensor],
) -> Tensor:
    """``start`` after some steps of Adam, its first dimension counting owners that know nothing of one another.

    ``bound(values, number)`` adds up what each owner wants to be small. An owner whose steps lead nowhere, such as that
    of an image that is no image, stays where it was.
    """
    values, fast, slow = start, torch.zeros_like(start), torch.zeros_like(start)
    for number in range(steps):
        here = values.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(bound(here, number), here)
        fast = _FAST * fast + (1 - _FAST) * gradient
        slow = _SLOW * slow + (1 - _SLOW) * gradient.square()
        first, second = fast / (1 - _FAST ** (number + 1)), slow / (1 - _SLOW ** (number + 1))
        values = within(values - rate * first / (second.sqrt() + _TINY))
    sound = torch.isfinite(values).flatten(1).all(1).view(-1, *[1] * (start.ndim - 1))
    return torch.where(sound, values, start).detach()


def refined(
    posterior: Tensor, decode: Decoding, images: Tensor, noises: Tensor, *, rate: float, weight: float
) -> Tensor:
    """``[rows, 2, code]`` after a step for each of ``noises`` ``[rows, steps, code]``, every row on its own bound."""

    def bound(values: Tensor, number: int) -> Tensor:
        logits = decode(drawn(values, noises[:, number]))
        return (reconstruction(logits, images) + weight * divergence(values)).sum()

    return improved(posterior, bound, steps=noises.shape[1], rate=rate, within=bounded)


class LinearEncoder:
    """A shard's encoder: coarse pixels and the label → a posterior. Its weights are the shard's memory."""

    def __init__(self, shape: tuple[int, int, int], *, code: int, classes: int) -> None:
        self.code, self.classes = code, classes
        self.inputs = shape[0] * min(_COARSE, shape[1]) * min(_COARSE, shape[2]) + classes + 1
        self.shape = (self.inputs, 2 * code)

    def features(self, images: Tensor, labels: Tensor) -> Tensor:
        """``[rows, inputs]``, of about norm one."""
        size = (min(_COARSE, images.shape[2]), min(_COARSE, images.shape[3]))
        pixels = nn.functional.adaptive_avg_pool2d(images, size).flatten(1) / size[0]
        return torch.cat([pixels, one_hot(labels, self.classes, pixels), torch.ones_like(pixels[:, :1])], dim=1)

    def posterior(self, features: Tensor, weights: Tensor) -> Tensor:
        """``[owners, rows, inputs]`` and ``[owners, inputs, 2 code]`` → ``[owners · rows, 2, code]``."""
        return bounded((features @ weights).flatten(0, 1).unflatten(1, (2, self.code)))

    def learned(
        self,
        weights: Tensor,
        decode: Decoding,
        images: Tensor,
        labels: Tensor,
        shares: Tensor,
        noises: Tensor,
        *,
        rate: float,
        weight: float,
    ) -> Tensor:
        """Each shard's weights after a step for each of ``noises``, on the bound of its own rows."""
        features = self.features(images, labels).unflatten(0, shares.shape)

        def bound(values: Tensor, number: int) -> Tensor:
            posterior = self.posterior(features, values)
            rows = reconstruction(decode(drawn(posterior, noises[:, number])), images) + weight * divergence(posterior)
            return torch.where(shares.flatten() > 0, rows * shares.flatten(), 0.0).sum()

        return improved(weights, bound, steps=noises.shape[1], rate=rate, within=lambda values: values)
