"""A model's weights as a few long vectors, so that an optimiser launches a few kernels a step and not hundreds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sfumato.privacy.gradients import groups_of
from sfumato.privacy.gradients.noisy_gradient import NoisyGradient


class FlatParameters(nn.Module):
    """One vector for each clip group.

    The model's own parameters become views of these vectors, so the model must not be moved to another device
    afterwards. What a checkpoint saves are the vectors.
    """

    def __init__(self, model: nn.Module, clip_norm: Mapping[str, float]) -> None:
        """Flatten ``model`` by the groups of ``clip_norm``, which maps a prefix of parameter names to a clip norm."""
        super().__init__()
        own = dict(model.named_parameters())
        self.groups = nn.ParameterDict()
        for group, (_, names) in groups_of(model, clip_norm).items():
            vector = torch.cat([own[name].detach().flatten() for name in names])
            for name, piece in zip(names, vector.split([own[name].numel() for name in names]), strict=True):
                own[name].data = piece.view(own[name].shape)
            self.groups[group] = nn.Parameter(vector)

    def apply_gradient(self, gradient: NoisyGradient, optimizer: torch.optim.Optimizer) -> None:
        """Take one optimiser step along a noisy gradient of the same clip groups."""
        pieces = gradient.vector.split([vector.numel() for vector in self.groups.values()])
        for vector, piece in zip(self.groups.values(), pieces, strict=True):
            vector.grad = piece
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def copy_from(self, other: FlatParameters) -> None:
        """Copy the other's weights; the model follows, because its parameters are views."""
        for own, value in zip(self.parameters(), other.parameters(), strict=True):
            own.copy_(value)
