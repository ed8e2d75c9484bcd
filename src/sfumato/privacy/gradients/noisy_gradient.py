"""A noisy gradient: released, so anything may be done with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class NoisyGradient:
    """One long vector: the pieces of the model's trainable parameters, in the order of ``names``."""

    model: nn.Module
    names: tuple[str, ...]
    vector: Tensor

    @classmethod
    def of(cls, model: nn.Module, parts: Mapping[str, Tensor]) -> NoisyGradient:
        return cls(model, tuple(parts), torch.cat([part.flatten() for part in parts.values()]))

    @property
    def parts(self) -> dict[str, Tensor]:
        """Parameter name → its piece, in its shape."""
        own = dict(self.model.named_parameters())
        pieces = self.vector.split([own[name].numel() for name in self.names])
        return {name: piece.view(own[name].shape) for name, piece in zip(self.names, pieces, strict=True)}

    def __truediv__(self, divisor: float | Tensor) -> NoisyGradient:
        return NoisyGradient(self.model, self.names, self.vector / divisor)

    def __mul__(self, factor: float | Tensor) -> NoisyGradient:
        return NoisyGradient(self.model, self.names, self.vector * factor)

    def __add__(self, other: NoisyGradient) -> NoisyGradient:
        if self.names != other.names:
            raise ValueError("only gradients of the same parameters, in the same order, can be added")
        return NoisyGradient(self.model, self.names, self.vector + other.vector)

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimiser take one step along it."""
        own = dict(self.model.named_parameters())
        for name, part in self.parts.items():
            own[name].grad = part.to(own[name].dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
