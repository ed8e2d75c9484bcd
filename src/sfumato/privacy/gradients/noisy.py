"""A noisy gradient: released, so anything may be done with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class NoisyGradient:
    """One tensor for each trainable parameter of the model it was asked for."""

    model: nn.Module
    parts: dict[str, Tensor]

    def __truediv__(self, divisor: float | Tensor) -> NoisyGradient:
        return NoisyGradient(self.model, {name: part / divisor for name, part in self.parts.items()})

    def __mul__(self, factor: float | Tensor) -> NoisyGradient:
        return NoisyGradient(self.model, {name: part * factor for name, part in self.parts.items()})

    def __add__(self, other: NoisyGradient) -> NoisyGradient:
        return NoisyGradient(self.model, {name: part + other.parts[name] for name, part in self.parts.items()})

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimiser take one step along it."""
        for name, parameter in self.model.named_parameters():
            if name in self.parts:
                parameter.grad = self.parts[name].to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
