"""Look-up tables: row v of the table gets the gradients of the places where v was looked up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.privacy.gradients.contribution import Contribution, PerExample, working
from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.tracing import RULES, Layer, Record, Tracked, see


class Lookup(Contribution):
    """One look-up for each unit: the gradient is that of one entry of the table, and the others are zero."""

    relative = 0.0

    def __init__(self, index: Tensor, gradient: Tensor, *, table: tuple[int, int], stack: int) -> None:
        """``index`` is ``[units]``, ``gradient`` ``[units, width]``."""
        self.index, self.gradient, self.table, self.stack = index, gradient, table, stack
        self.absolute = math.sqrt(table[1]) / 2.0
        self.bytes_per_unit = 24.0 * table[1]

    def norms(self) -> tuple[Tensor, Tensor]:
        norm = torch.linalg.vector_norm(self.gradient, dim=1, dtype=torch.float64)
        return norm, norm

    def gradients(self) -> Tensor:
        return by_entry(self.index[:, None], self.gradient[:, None], self.table[0])

    def sums(self, factor: Tensor, spacing: float) -> Tensor:
        scaled = torch.round(self.gradient.double() * (factor / spacing)[:, None])
        whole = torch.where(factor[:, None] > 0, scaled, 0.0).to(torch.int64)
        entries, width = self.table
        model = torch.arange(self.stack, device=factor.device).repeat_interleave(len(factor) // self.stack)
        # Whole numbers: the order in which a GPU adds them does not matter.
        return (
            whole.new_zeros(self.stack * entries, width)
            .index_add(0, self.index + model * entries, whole)
            .view(self.stack, -1)
        )


def by_entry(index: Tensor, gradient: Tensor, entries: int) -> Tensor:
    """Each unit's gradient of the table, ``[units, entries · width]``: look-ups of the same entry are added."""
    gradient = gradient.to(working(gradient.dtype))
    chosen = functional.one_hot(index, entries).to(gradient.dtype)
    return torch.bmm(chosen.transpose(1, 2), gradient).flatten(1)


class _Embedding(Layer):
    def __init__(self, weight: Tensor, name: str, padding: int | None, stack: int) -> None:
        self.weight, self.name, self.padding, self.stack = weight, name, padding, stack

    def forward(self, x: Tensor) -> Tensor:
        entries = self.weight.shape[1]
        rows = x.view(self.stack, -1)
        offset = torch.arange(self.stack, device=x.device)[:, None] * entries
        return functional.embedding(rows + offset, self.weight.flatten(0, 1)).view(*x.shape, -1)

    def input_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        raise UntracedUse("an index has no gradient")

    def note(self, record: Record, x: Tensor, gradient: Tensor) -> None:
        if self.padding is not None:
            gradient = gradient.masked_fill((x == self.padding)[..., None], 0.0)
        entries, width = self.weight.shape[1:]
        index, gradient = x.reshape(record.units, -1), gradient.reshape(record.units, -1, width)
        if index.shape[1] == 1:
            found: Contribution = Lookup(index[:, 0], gradient[:, 0], table=(entries, width), stack=record.stack)
        else:
            found = PerExample(by_entry(index, gradient, entries), stack=record.stack)
        record.add(self.name, found)


def _embedding(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    def look_up(
        input: Any,
        weight: Any,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        if max_norm is not None or scale_grad_by_freq or not isinstance(weight, Tracked):
            raise UntracedUse("an embedding with max_norm or scale_grad_by_freq depends on the whole batch")
        record.expect_rows(weight.called, input)
        plain = weight.plain if record.stack > 1 else weight.plain[None]
        padding = None if padding_idx is None else padding_idx % plain.shape[1]
        return see(record, _Embedding(plain, weight.called, padding, record.stack), input.contiguous())

    return look_up(*args, **kwargs)


RULES[functional.embedding] = _embedding
