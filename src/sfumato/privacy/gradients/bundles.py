"""Contributions that are measured and added together: many small parameters cost as few operations as one.

A network has dozens of biases and of layers of the same shape. Taken one by one, each of them costs some thirty
operations on small tensors, and starting these takes longer than carrying them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sfumato.privacy.gradients.contribution import Contribution, PerExample
from sfumato.privacy.gradients.ghost import GhostClipping

_SMALL = 1 << 12
"""Numbers of a gradient up to which it is worth copying to be treated together with others."""


@dataclass(frozen=True, eq=False)
class Bundle:
    """One contribution that stands for those of several parameters of a clip group.

    Either their gradients are columns of one matrix, ``widths`` columns each, or ``layers`` layers of one shape lie one
    after another like the models of a stack.
    """

    names: tuple[str, ...]
    contribution: Contribution
    layers: int = 1
    widths: tuple[int, ...] | None = None

    @property
    def stack(self) -> int:
        return self.contribution.stack // self.layers

    @property
    def absolute(self) -> float:
        """Grid steps by which rounding may move a unit's vector."""
        return self.contribution.absolute * float(self.layers) ** 0.5

    def norms(self) -> tuple[Tensor, Tensor]:
        """Norm and spread of each unit's vector over all parameters of the bundle."""
        norm, spread = self.contribution.norms()
        if self.layers == 1:
            return norm, spread
        joined = [torch.linalg.vector_norm(value.view(self.layers, -1), dim=0) for value in (norm, spread)]
        return joined[0], joined[1]

    def sums(self, factor: Tensor, spacing: float) -> Iterator[tuple[str, Tensor]]:
        """Parameter name → ``[stack, numel]``, as :meth:`Contribution.sums` gives it."""
        if self.layers == 1:
            found = self.contribution.sums(factor, spacing)
            return zip(self.names, (found,) if self.widths is None else found.split(self.widths, 1), strict=True)
        found = self.contribution.sums(factor.repeat(self.layers), spacing)
        return zip(self.names, found.view(self.layers, self.stack, -1), strict=True)


def bundled(contributions: Mapping[str, Contribution], owner: Mapping[str, str]) -> Iterator[tuple[str, Bundle]]:
    """Clip group and bundle, for contributions from one pass; ``owner`` says each parameter's group."""
    alike: dict[tuple[object, ...], list[str]] = {}
    for name, contribution in contributions.items():
        alike.setdefault((owner[name], *_kind(name, contribution)), []).append(name)
    for (group, *_), names in alike.items():
        yield str(group), _bundle(tuple(names), [contributions[name] for name in names])


def _kind(name: str, contribution: Contribution) -> tuple[object, ...]:
    """What is equal for contributions that go together; public shapes decide."""
    if isinstance(contribution, PerExample) and contribution.gradient.shape[1] <= _SMALL:
        return ("columns", contribution.gradient.dtype, contribution.stack)
    if isinstance(contribution, GhostClipping) and contribution.a.shape[1] == 1:
        a, b = contribution.a, contribution.b
        return ("layers", a.shape, b.shape, a.dtype, b.dtype, contribution.stack)
    return (name,)


def _bundle(names: tuple[str, ...], parts: list[Contribution]) -> Bundle:
    if len(parts) == 1:
        return Bundle(names, parts[0])
    stack = parts[0].stack
    gradients = [part.gradient for part in parts if isinstance(part, PerExample)]
    if gradients:
        widths = tuple(gradient.shape[1] for gradient in gradients)
        return Bundle(names, PerExample(torch.cat(gradients, 1), stack=stack), widths=widths)
    layers = [part for part in parts if isinstance(part, GhostClipping)]
    a, b = torch.cat([part.a for part in layers]), torch.cat([part.b for part in layers])
    return Bundle(names, GhostClipping(a, b, stack=stack * len(layers)), layers=len(layers))
