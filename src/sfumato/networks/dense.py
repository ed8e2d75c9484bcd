"""A variational autoencoder of fully connected layers, for images of any size and for points in a plane."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.networks.priors import log_normal

Shape = tuple[int, int, int]

_LEAST, _MOST = -5.0, 3.0  # of the log-deviation: no code is told apart more finely, none is wider


@dataclass(frozen=True)
class Posterior:
    """q(z | x) for each row: independent normals."""

    mean: Tensor
    deviation: Tensor

    def draw(self, noise: Tensor) -> Tensor:
        """Codes from standard normal ``noise`` (the reparametrisation)."""
        return self.mean + self.deviation * noise

    def log_density(self, codes: Tensor) -> Tensor:
        """``[rows, code]`` → ``[rows]``."""
        return log_normal(codes, self.mean, self.deviation).sum(-1)


class VariationalAutoencoder(nn.Module):
    """Image and label → posterior over a code; code and label → logits of the pixels."""

    def __init__(self, shape: Shape, classes: int, *, code: int, hidden: int, depth: int = 1) -> None:
        super().__init__()
        if min(code, hidden, depth) < 1:
            raise ValueError(f"code, hidden and depth must be at least 1, not {code}, {hidden} and {depth}")
        self.shape, self.code = shape, code
        self.labels = classes if classes > 1 else 0
        pixels = torch.Size(shape).numel()
        widths = [hidden] * depth
        self.down = _layers(pixels + self.labels, widths)
        self.encode_mean = nn.Linear(hidden, code)
        self.encode_deviation = nn.Linear(hidden, code)
        self.up = _layers(code + self.labels, widths)
        self.decode_last = nn.Linear(hidden, pixels)

    def encode(self, images: Tensor, labels: Tensor) -> Posterior:
        """Pixels are centred by a constant of their domain."""
        hidden = _through(self.down, self._with(2.0 * images.flatten(1) - 1.0, labels))
        deviation = self.encode_deviation(hidden).clamp(_LEAST, _MOST).exp()
        return Posterior(self.encode_mean(hidden), deviation)

    def decode(self, codes: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.decode_last(_through(self.up, self._with(codes, labels)))
        return logits.view(-1, *self.shape)

    def _with(self, values: Tensor, labels: Tensor) -> Tensor:
        if not self.labels:
            return values
        # Not one_hot: it looks at the largest label, which torch.func cannot trace.
        ones = labels[:, None] == torch.arange(self.labels, device=labels.device)
        return torch.cat([values, ones.to(values)], dim=1)


def _layers(first: int, widths: list[int]) -> nn.ModuleList:
    sizes = [first, *widths]
    return nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, widths, strict=False))


def _through(layers: nn.ModuleList, values: Tensor) -> Tensor:
    for layer in layers:
        values = torch.tanh(layer(values))
    return values
