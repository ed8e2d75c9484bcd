"""One small critic for every shard of the records, trained without noise and kept as the shard's private state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from sfumato.networks.critic import Critic
from sfumato.training.functional_adam import minimise


class ShardedCritics:
    """Copies of one critic, all evaluated side by side.

    All critics start from the same public weights; the private state of a shard is the offset of its critic's weights
    from them, ``[shards, parameters]``.
    """

    def __init__(self, critic: Critic, *, steps: int, learning_rate: float, gradient_penalty: float) -> None:
        """Take the initial weights from ``critic``; the other arguments are those of each critic's training."""
        self.steps, self.learning_rate, self.gradient_penalty = steps, learning_rate, gradient_penalty
        self._critic = critic.requires_grad_(False)
        self._shapes = {name: weight.shape for name, weight in critic.named_parameters()}
        self.start = parameters_to_vector(critic.parameters())

    def __len__(self) -> int:
        """The number of parameters of one critic."""
        return len(self.start)

    def values(self, offsets: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Each shard's critic on its own images ``[shards, rows, C, H, W]``: values ``[shards, rows]``."""

        def one(weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
            pieces = weights.split([shape.numel() for shape in self._shapes.values()])
            own = {name: piece.view(self._shapes[name]) for name, piece in zip(self._shapes, pieces, strict=True)}
            found: Tensor = functional_call(self._critic, own, (images, labels))
            return found

        return torch.vmap(one)(self.start + offsets, images, labels)

    def image_gradients(self, offsets: Tensor, images: Tensor, labels: Tensor, *, create_graph: bool = False) -> Tensor:
        """The gradient of each critic's value with respect to each image, in the shape of the images."""
        with torch.enable_grad():
            images = images.detach().requires_grad_()
            values = self.values(offsets, images, labels)
            (found,) = torch.autograd.grad(values.sum(), images, create_graph=create_graph)
        return found

    def trained(
        self, offsets: Tensor, images: Tensor, fakes: Tensor, labels: Tensor, shares: Tensor, mixes: Tensor
    ) -> Tensor:
        """The offsets after ``steps`` steps of each critic on its own shard (Wasserstein loss, gradient penalty).

        Args:
            offsets: Private state of the shards, ``[shards, parameters]``.
            images: Real images, ``[shards, rows, C, H, W]``.
            fakes: As many generated images of the same labels.
            labels: Labels, ``[shards, rows]``.
            shares: Weights of the rows, 0 for padding.
            mixes: Interpolation weights of the gradient penalty, ``[shards, rows, steps]``.
        """

        def loss(offsets: Tensor, number: int) -> Tensor:
            mix = mixes[:, :, number, None, None, None]
            mixed = mix * images + (1.0 - mix) * fakes
            gradients = self.image_gradients(offsets, mixed, labels, create_graph=True)
            norms = torch.sqrt(gradients.flatten(2).square().sum(2) + 1e-12)
            gain = self.values(offsets, images, labels) - self.values(offsets, fakes, labels)
            return (shares * (self.gradient_penalty * (norms - 1.0).square() - gain)).sum()

        return minimise(loss, offsets, steps=self.steps, learning_rate=self.learning_rate)
