"""Losses that look at several records at once: clipped group by group, or coupled to every record's own loss.

A vector that several records share can be turned around by one of them, so it moves by twice its clip; and it moves
with all the records that it is added to. ``bound`` says how far one unit moves ``total``, on the average.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sfumato.privacy.gradients.batch import Batch, Loss, PerClass
from sfumato.privacy.gradients.engine import check, check_group, clipped_sum
from sfumato.privacy.gradients.one_row import UnsupportedModel, one_group
from sfumato.privacy.randomness import Draws

GroupLoss = Callable[..., Tensor]
"""``group_loss(model, images, labels, random)``: one number for all its rows, from these rows and the model alone."""

_MARGIN = 1e-9  # norms, scaling and sums are float64


class Terms(ABC):
    """What a question about several loss terms is made of: a total, and how far one unit moves it."""

    @property
    @abstractmethod
    def bound(self) -> float: ...

    @abstractmethod
    def total(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Parameter name → the average over terms, in float64. The batch comes whole."""

    @abstractmethod
    def check(self, model: nn.Module, batch: Batch) -> None:
        """Refuse losses that break their contract, on a batch of random images."""


@dataclass(frozen=True)
class Grouped(Terms):
    """``1/B · Σ_i clip_C1(∇ sample_loss_i) + 1/b · Σ_j clip_C2(∇ group_loss(group j))``, B and b public.

    Each unit draws its group from its own key.

    Guarantee. Removing a unit moves the total by at most C1/B + 2·C2/b; without a sample loss, C1 counts as 0.
    """

    sample_loss: Loss | None
    group_loss: GroupLoss
    groups: int
    clip_norms: tuple[float, float]
    batch: float

    def __post_init__(self) -> None:
        if self.groups < 1 or self.groups != int(self.groups):
            raise ValueError(f"the number of groups must be a whole number from 1 on, not {self.groups}")
        used = self.clip_norms if self.sample_loss is not None else self.clip_norms[1:]
        _check_numbers(*used, self.batch)

    @property
    def bound(self) -> float:
        own = 0.0 if self.sample_loss is None else self.clip_norms[0] / self.batch
        return own + 2.0 * self.clip_norms[1] / self.groups

    def labels(self, batch: Batch) -> Tensor:
        """The group of each unit: a person's images stay together."""
        return batch.random[:: batch.rows_per_unit].integers("group label", self.groups)

    def total(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        total = _zeros(model)
        if self.sample_loss is not None:
            sums = clipped_sum(model, self.sample_loss, batch, self.clip_norms[0])
            total = {name: value / self.batch for name, value in sums.items()}
        groups = self.labels(batch)
        order, sizes = groups.argsort(stable=True), torch.bincount(groups, minlength=self.groups).tolist()
        batch = replace(batch, random=_Cut.of(batch.random))
        for members in order.split(sizes):
            vector, norm = _used(model, self.group_loss, batch.select(members))
            factor = (self.clip_norms[1] * (1.0 - _MARGIN) / norm.clamp(min=1e-300)).clamp(max=1.0) / self.groups
            for name, value in vector.items():
                total[name] += value * factor
        return total

    def check(self, model: nn.Module, batch: Batch) -> None:
        if self.sample_loss is not None:
            check(model, self.sample_loss, batch, self.clip_norms[0])
        check_group(model, self.group_loss, batch)


@dataclass(frozen=True)
class Coupled(Terms):
    """``1/B · Σ_i clip_C(∇ sample_loss_i + ∇ batch_loss(batch))`` over a batch of at most B units, B public.

    A batch of more than B counts as empty.

    Guarantee. Removing a unit moves the total by at most (2B − 1)·C/B.
    """

    sample_loss: Loss
    batch_loss: GroupLoss
    clip_norm: float
    batch: int

    def __post_init__(self) -> None:
        if self.batch != int(self.batch):
            raise ValueError(f"the most units in a batch must be a whole number, not {self.batch}")
        _check_numbers(self.clip_norm, self.batch)

    @property
    def bound(self) -> float:
        return (2 * self.batch - 1) * self.clip_norm / self.batch

    def total(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if batch.units > self.batch:
            return _zeros(model)
        shared = group_gradient(model, self.batch_loss, batch)
        total = shifted_sum(model, self.sample_loss, batch, self.clip_norm, shared)
        return {name: value / self.batch for name, value in total.items()}

    def check(self, model: nn.Module, batch: Batch) -> None:
        check(model, self.sample_loss, batch, self.clip_norm)
        check_group(model, self.batch_loss, batch)


def _check_numbers(*numbers: float) -> None:
    for number in numbers:
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"clip norms and the public batch size must be positive numbers, not {number}")


def _zeros(model: nn.Module) -> dict[str, Tensor]:
    return {n: torch.zeros_like(p, dtype=torch.float64) for n, p in model.named_parameters() if p.requires_grad}


def group_gradient(model: nn.Module, loss: GroupLoss, batch: Batch) -> dict[str, Tensor]:
    """Parameter name → the gradient of one number for all these units, in float64; zero where there is nothing finite.

    Rows that only fill up a person are left out, and so are images that are not finite: each is its own unit's matter.
    """
    return {**_zeros(model), **_used(model, loss, batch)[0]}


def _used(model: nn.Module, loss: GroupLoss, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """The same for the parameters that the loss uses, for most of a model may have no part in it; and its norm."""
    nothing: tuple[dict[str, Tensor], Tensor] = ({}, torch.zeros((), device=batch.images.device))
    finite = torch.isfinite(batch.images.flatten(1)).all(1)
    rows = ((batch.weights.flatten() > 0) & finite).nonzero()[:, 0]
    if not len(rows):
        return nothing
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        value = one_group(loss, model, batch.images[rows], batch.labels[rows], batch.random[rows])
        if not value.requires_grad:
            return nothing
        found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
    used = {name: gradient.detach() for name, gradient in zip(parameters, found, strict=True) if gradient is not None}
    if not used:
        return nothing
    flat = torch.cat([gradient.flatten() for gradient in used.values()]).double()
    norm = torch.linalg.vector_norm(flat)
    pieces = flat.split([gradient.numel() for gradient in used.values()])
    vector = {name: piece.view_as(used[name]) for name, piece in zip(used, pieces, strict=True)}
    return (vector, norm) if bool(torch.isfinite(norm)) else nothing


def shifted_sum(
    model: nn.Module, loss: Loss, batch: Batch, clip_norm: float, shift: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Parameter name → the sum in float64. ``shift`` is a gradient of the whole batch, the same for every unit.

    Every unit's gradient is formed whole (torch.func): a norm put together from ``|g|² + 2⟨g, s⟩ + |s|²`` would cancel.
    """
    if isinstance(model, PerClass):
        raise UnsupportedModel(
            "a batch's loss cannot be added to the models of single classes; use one model for all classes"
        )

    def shifted(model: nn.Module, *row: Tensor) -> Tensor:
        # A linear function of the parameters, whose gradient is the shift.
        own = dict(model.named_parameters())
        common = [(own[name] * value.to(own[name].dtype)).sum() for name, value in shift.items()]
        return loss(model, *row) + torch.stack(common).sum()

    return clipped_sum(model, shifted, batch, clip_norm)


@dataclass(frozen=True)
class _Cut(Draws):
    """Some rows of a batch whose words are made for all rows at once: many small groups ask for few words each."""

    whole: Draws
    places: Tensor
    words: dict[tuple[str, int], Tensor]

    @classmethod
    def of(cls, whole: Draws) -> _Cut:
        return cls(whole.key, whole.rows, whole.draw, whole, torch.arange(len(whole), device=whole.rows.device), {})

    def __getitem__(self, index: slice | Tensor) -> _Cut:
        places = self.places[index]
        return _Cut(self.key, self.rows[index], self.draw[index], self.whole, places, self.words)

    def _words(self, name: str, count: int) -> Tensor:
        if (name, count) not in self.words:
            self.words[name, count] = self.whole._words(name, count)
        return self.words[name, count][self.places]
