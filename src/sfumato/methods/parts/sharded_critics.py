"""Critics of shards: one small network in as many copies as there are shards, each copy its shard's memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector

from sfumato.methods.parts.record_posteriors import improved
from sfumato.networks.critic import Critic


class Critics:
    """What a shard remembers is how far its critic has moved from weights that all began with, and that are public."""

    def __init__(self, critic: Critic, *, steps: int, rate: float, penalty: float) -> None:
        self.steps, self.rate, self.penalty = steps, rate, penalty
        self._critic = critic.requires_grad_(False)
        self._shapes = {name: weight.shape for name, weight in critic.named_parameters()}
        self.start = parameters_to_vector(critic.parameters())

    def __len__(self) -> int:
        return len(self.start)

    def values(self, moved: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """``[owners, rows]``, each owner's critic on its own ``[owners, rows, ...]`` images."""

        def one(weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
            pieces = weights.split([shape.numel() for shape in self._shapes.values()])
            own = {name: piece.view(self._shapes[name]) for name, piece in zip(self._shapes, pieces, strict=True)}
            found: Tensor = functional_call(self._critic, own, (images, labels))
            return found

        return torch.vmap(one)(self.start + moved, images, labels)

    def slopes(self, moved: Tensor, images: Tensor, labels: Tensor, *, graph: bool = False) -> Tensor:
        """Where each critic wants each image to go."""
        with torch.enable_grad():
            images = images.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.values(moved, images, labels).sum(), images, create_graph=graph)
        return found

    def trained(
        self, moved: Tensor, images: Tensor, fakes: Tensor, labels: Tensor, shares: Tensor, mixes: Tensor
    ) -> Tensor:
        """After ``steps`` steps each, real rows against as many fakes of the same labels, with gradient penalty.

        ``mixes`` ``[owners, rows, steps]`` say where between its real and its fake image a row's slope is looked at.
        """

        def bound(moved: Tensor, number: int) -> Tensor:
            mix = mixes[:, :, number, None, None, None]
            slopes = self.slopes(moved, mix * images + (1.0 - mix) * fakes, labels, graph=True)
            steep = torch.sqrt(slopes.flatten(2).square().sum(2) + 1e-12)
            gain = self.values(moved, images, labels) - self.values(moved, fakes, labels)
            return (shares * (self.penalty * (steep - 1.0).square() - gain)).sum()

        return improved(moved, bound, steps=self.steps, rate=self.rate, within=lambda values: values)
