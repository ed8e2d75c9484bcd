"""RealNVP (Dinh et al., 2017): affine couplings with an exact density and an exact inverse, in plain linear layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Coupling(nn.Module):
    """An affine coupling: half of the dimensions is kept and, with the label, scales and shifts the other half.

    The halves are a fixed permutation, equal in every network of the same ``number``, so that the models of several
    classes can be stacked. The log-scale is a tanh, so one coupling scales by at most a factor e.
    """

    kept: Tensor
    changed: Tensor
    back: Tensor

    def __init__(self, dimensions: int, *, hidden: int, labels: int = 0, number: int = 0) -> None:
        super().__init__()
        order = torch.randperm(dimensions, generator=torch.Generator().manual_seed(number))
        half = dimensions // 2
        self.labels = labels
        self.register_buffer("kept", order[:half])
        self.register_buffer("changed", order[half:])
        self.register_buffer("back", order.argsort())
        self.first = nn.Linear(half + labels, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 2 * (dimensions - half))

    def _scale_and_shift(self, kept: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.labels:
            if labels is None:
                raise ValueError("this flow depends on the label; give one for each row")
            kept = torch.cat([kept, F.one_hot(labels, self.labels).to(kept)], dim=1)
        hidden = F.relu(self.second(F.relu(self.first(kept))))
        scale, shift = self.last(hidden).chunk(2, dim=1)
        return torch.tanh(scale), shift

    def forward(self, code: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step towards the normal distribution, and the log-determinant of the Jacobian, ``[B]``."""
        kept, changed = code[:, self.kept], code[:, self.changed]
        scale, shift = self._scale_and_shift(kept, labels)
        return torch.cat([kept, changed * torch.exp(scale) + shift], dim=1)[:, self.back], scale.sum(1)

    def inverse(self, code: Tensor, labels: Tensor | None = None) -> Tensor:
        """The exact inverse of ``forward``."""
        kept, changed = code[:, self.kept], code[:, self.changed]
        scale, shift = self._scale_and_shift(kept, labels)
        return torch.cat([kept, (changed - shift) * torch.exp(-scale)], dim=1)[:, self.back]


class RealNVP(nn.Module):
    """A chain of affine couplings between data and a standard normal distribution; ``labels`` classes condition it.

    >>> flow = RealNVP(4, couplings=3, hidden=8)
    >>> code = torch.randn(5, 4)
    >>> torch.allclose(flow.inverse(flow(code)[0]), code, atol=1e-5)
    True
    """

    def __init__(self, dimensions: int, *, couplings: int, hidden: int, labels: int = 0) -> None:
        super().__init__()
        if dimensions < 2 or couplings < 1 or hidden < 1:
            raise ValueError(
                "a flow needs at least 2 dimensions, 1 coupling and 1 hidden unit, "
                f"not {dimensions}, {couplings} and {hidden}"
            )
        self.dimensions, self.labels = dimensions, labels
        self.couplings = nn.ModuleList(
            Coupling(dimensions, hidden=hidden, labels=labels, number=number) for number in range(couplings)
        )

    def forward(self, code: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The code under the standard normal distribution, and the log-determinant of the Jacobian, ``[B]``."""
        log_determinant = torch.zeros_like(code[:, 0])
        for coupling in self.couplings:
            code, change = coupling(code, labels)
            log_determinant = log_determinant + change
        return code, log_determinant

    def log_density(self, code: Tensor, labels: Tensor | None = None) -> Tensor:
        """Exact log-density of codes, ``[B]``."""
        normal, log_determinant = self(code, labels)
        return log_determinant - 0.5 * normal.square().sum(1) - 0.5 * self.dimensions * math.log(2 * math.pi)

    def inverse(self, normal: Tensor, labels: Tensor | None = None) -> Tensor:
        """The code of a point under the standard normal distribution."""
        for coupling in reversed(list(self.couplings)):
            if not isinstance(coupling, Coupling):
                raise TypeError(f"a flow is made of couplings, not of {type(coupling).__name__}")
            normal = coupling.inverse(normal, labels)
        return normal
