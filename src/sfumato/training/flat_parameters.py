"""A model's weights as a few long vectors: an optimiser then starts the device a few times a step, not hundreds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sfumato.privacy.gradients import groups_of
from sfumato.privacy.gradients.noisy_gradient import NoisyGradient


class FlatParameters(nn.Module):
    """One vector for each clip group. The model's own parameters become views of them, so it must not move to another
    device afterwards; what is saved is these vectors."""

    def __init__(self, model: nn.Module, clip: Mapping[str, float]) -> None:
        super().__init__()
        own = dict(model.named_parameters())
        self.groups = nn.ParameterDict()
        for group, (_, names) in groups_of(model, clip).items():
            vector = torch.cat([own[name].detach().flatten() for name in names])
            for name, piece in zip(names, vector.split([own[name].numel() for name in names]), strict=True):
                own[name].data = piece.view(own[name].shape)
            self.groups[group] = nn.Parameter(vector)

    def apply_gradient(self, gradient: NoisyGradient, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimiser take one step along it; its groups lie in the same order."""
        pieces = gradient.vector.split([vector.numel() for vector in self.groups.values()])
        for vector, piece in zip(self.groups.values(), pieces, strict=True):
            vector.grad = piece
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def become(self, other: FlatParameters) -> None:
        """Take over another's weights, and with them the model does."""
        for own, value in zip(self.parameters(), other.parameters(), strict=True):
            own.copy_(value)
