"""Weights whose gradient is a sum of outer products over positions, and the exact formulas for its norm.

A unit's gradient is G = Σ_t b_t a_tᵀ, t over the positions of all its rows.

- ``single``: one position, |G|² = |a|² |b|²;
- ``gram``: |G|² = Σ_{t,s} ⟨a_t, a_s⟩ ⟨b_t, b_s⟩, in float64, because the terms cancel: float32 is 3 % short when
  activations have mean 1e3 and spread 1, and a clip that under-estimates a norm is broken;
- ``keep``: form every G once, take its norm, and weigh the same matrices afterwards: no second product;
- ``grouped``: as ``keep``, but every G by one grouped convolution, a unit to each group;
- ``drop``: form every G for its norm only, part by part, and let the weighted sum be one large product.

Which is fastest depends on the shape and the device. Small work is decided by counting multiplications; large work by
measuring each candidate once, and the answer is remembered for the life of the process.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from sfumato.privacy.gradients.contribution import Contribution, weigh
from sfumato.privacy.gradients.norms import Norms, lengths
from sfumato.privacy.gradients.rounding import working

WORTH_MEASURING = 5e8
"""Multiplications below which a formula is chosen by counting: the answer is then the same on every machine."""

_chosen: dict[tuple[object, ...], str] = {}


class Product(Contribution):
    """``inner`` and ``outer`` are the lengths of a_t and b_t, ``groups`` the independent blocks of the weight."""

    inner: int
    outer: int
    positions: int
    groups: int
    device: torch.device
    kind: tuple[object, ...]
    convolves: bool = False
    _kept: Tensor | None = None

    @abstractmethod
    def operands(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """a ``[units · groups, inner, positions]`` and b ``[units · groups, outer, positions]`` of these units."""

    @abstractmethod
    def product(self, factor: Tensor) -> Tensor:
        """The weighted sum as one large product, ``[stack, numel]``."""

    def by_groups(self) -> Tensor:
        """All gradients by one grouped convolution, ``[units, numel]``, where ``convolves`` says there is one."""
        raise NotImplementedError

    def norms(self) -> Norms:
        if self.positions > 1:
            return self._measure(self._formula())
        first, second = self.lengths()
        if self.groups == 1:
            return Norms(first, second)
        per_group = first.double() * second
        return Norms(torch.linalg.vector_norm(per_group.view(self.units, self.groups), dim=1))

    def lengths(self) -> tuple[Tensor, Tensor]:
        """|a| and |b| of each unit and group, where there is one position."""
        a, b = self.operands(0, self.units)
        return lengths(a[:, :, 0], exact=self.exact), lengths(b[:, :, 0], exact=self.exact)

    def spread(self) -> Tensor:
        if self.positions == 1:
            return self.norms().norm
        return torch.cat([self._spread(*self.operands(start, stop)) for start, stop in self._parts("drop")])

    def instantiate(self, start: int, stop: int) -> Tensor:
        a, b = (operand.to(working(operand.dtype)) for operand in self.operands(start, stop))
        return torch.bmm(b, a.transpose(1, 2)).view(stop - start, -1)

    def weighted(self, factor: Tensor) -> Tensor:
        if self._kept is not None:
            return weigh(factor, self._kept, self.stack)
        return self.product(factor)

    def _spread(self, a: Tensor, b: Tensor) -> Tensor:
        norms = [torch.linalg.vector_norm(operand, dim=1, dtype=working(operand.dtype)) for operand in (a, b)]
        return self._ungroup((norms[0].double() * norms[1]).sum(1))

    def _ungroup(self, values: Tensor) -> Tensor:
        return values if self.groups == 1 else values.view(-1, self.groups).sum(1)

    def _measure(self, formula: str) -> Norms:
        if formula in ("keep", "grouped"):
            self._kept = self.by_groups() if formula == "grouped" else self.instantiate(0, self.units)
            # The very matrices that were measured are weighed: no operand is rounded a second time.
            return Norms(lengths(self._kept, exact=self.exact))
        pairs = [
            self._gram(start, stop) if formula == "gram" else self._drop(start, stop)
            for start, stop in self._parts(formula)
        ]
        if len(pairs) == 1:
            return Norms(pairs[0][0], None, pairs[0][1])
        return Norms(torch.cat([norm for norm, _ in pairs]), None, torch.cat([spread for _, spread in pairs]))

    def _gram(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        a, b = (operand.double() for operand in self.operands(start, stop))
        left, right = torch.bmm(a.transpose(1, 2), a), torch.bmm(b.transpose(1, 2), b)
        diagonal = (left.diagonal(dim1=1, dim2=2) * right.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
        squared = (left.flatten(1) * right.flatten(1)).sum(1)
        # Rounding may leave a vanishing norm a hair below zero; NaN must stay NaN, so no clamp to a number.
        return self._ungroup(squared).abs().sqrt(), self._ungroup(diagonal)

    def _drop(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        a, b = (operand.to(working(operand.dtype)) for operand in self.operands(start, stop))
        norm = lengths(torch.bmm(b, a.transpose(1, 2)).view(stop - start, -1), exact=self.exact)
        return norm, self._spread(a, b)

    def _parts(self, formula: str) -> Iterator[tuple[int, int]]:
        """Units in parts whose intermediate tensors stay small."""
        width = self.groups * (self.inner + self.outer) * self.positions * 8
        width += self.groups * (self.positions**2 * 16 if formula == "gram" else self.inner * self.outer * 4)
        size = max(1, int((1 << 28 if self.device.type == "cuda" else 1 << 27) // width))
        for start in range(0, self.units, size):
            yield start, min(self.units, start + size)

    def _formula(self) -> str:
        # Batches of coins differ in size by a little; what was fastest for one is fastest for the next.
        about = self.units.bit_length()
        key = (*self.kind, self.inner, self.outer, self.positions, self.groups, about, self.stack, self.device)
        if key not in _chosen:
            costs = self._costs()
            best = min(costs, key=lambda name: costs[name])
            rivals = [name for name, cost in costs.items() if cost <= 8 * costs[best]]
            if len(rivals) > 1 and costs[best] * self.units >= WORTH_MEASURING:
                times = {name: self._seconds(name) for name in rivals}
                best = min(times, key=lambda name: times[name])
            _chosen[key] = best
        return _chosen[key]

    def _costs(self) -> dict[str, float]:
        """Multiplications for each unit, those in float64 counted twice."""
        one = float(self.groups * self.positions * self.inner * self.outer)
        costs = {"gram": 2.0 * self.groups * self.positions**2 * (self.inner + self.outer) + one, "drop": 2.0 * one}
        # Held until the weighted sum: on a GPU memory is dearer than a second product.
        held = self.groups * self.inner * self.outer * self.units * 4
        if held <= max((1.5 if self.device.type == "cuda" else 4.0) * self.bytes, 1 << 20):
            costs["keep"] = one
            if self.convolves:
                # The same multiplications; how well they run is the library's secret, so only a measurement picks it.
                costs["grouped"] = 2.0 * one
        return costs

    def _seconds(self, formula: str) -> float:
        """Norm and weighted sum by this formula, the second of two runs."""
        factor = torch.ones(self.units, dtype=torch.float64, device=self.device)
        seconds = 0.0
        for _ in range(2):
            self._wait()
            start = time.perf_counter()
            self._measure(formula)
            self.weighted(factor)
            self._wait()
            seconds = time.perf_counter() - start
            self._kept = None
        return seconds

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
