"""A linear classifier trained on the synthetic images of a method, to count the private units it labels correctly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method
from sfumato.privacy import Curator

IMAGES_PER_CLASS = 100
_STEPS = 200


@dataclass(frozen=True)
class SyntheticClassifier:
    """Multinomial logistic regression on synthetic images, which are public where their generator is private."""

    weights: Tensor
    bias: Tensor

    @classmethod
    def trained(cls, method: Method, generator: nn.Module, curator: Curator) -> SyntheticClassifier:
        """Draw images of every class from ``generator`` and train on them; nothing private is read."""
        classes = len(curator.classes)
        labels = torch.arange(classes, device=curator.device).repeat_interleave(IMAGES_PER_CLASS)
        with torch.no_grad():
            images = torch.cat([method.generate(generator, part) for part in labels.split(500)]).flatten(1)
        images = images.detach().clamp(0, 1)
        linear = nn.Linear(images.shape[1], classes, device=images.device, dtype=images.dtype)
        optimizer = torch.optim.Adam(linear.parameters(), lr=0.01, weight_decay=1e-3)
        for _ in range(_STEPS):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(linear(images), labels).backward()
            optimizer.step()
        return cls(linear.weight.detach().t().contiguous(), linear.bias.detach())

    def correct(self, images: Tensor, labels: Tensor) -> Tensor:
        """1 for each image that is labelled correctly and 0 for the others, ``[B]``."""
        predicted = (images.flatten(1) @ self.weights.to(images.dtype) + self.bias.to(images.dtype)).argmax(1)
        return (predicted == labels).to(images.dtype)
