"""Look-up tables: row v of the table gets the gradients of the places where v was looked up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sfumato.privacy.gradients.contribution import Contribution
from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.norms import Norms, lengths
from sfumato.privacy.gradients.rounding import working
from sfumato.privacy.gradients.tracing import RULES, Layer, Record, Tracked, see


class Lookup(Contribution):
    """Places of a unit that looked up the same row are summed before the norm; different rows are orthogonal."""

    def __init__(self, index: Tensor, gradient: Tensor, *, table: tuple[int, int], units: int, stack: int) -> None:
        self.entries, self.width = table
        self.index = index.reshape(units, -1)
        self.gradient = gradient.reshape(units, -1, self.width)
        self.units, self.stack, self.numel = units, stack, self.entries * self.width
        self.dtypes = (gradient.dtype,)
        self.bytes = gradient.numel() * gradient.element_size()

    def norms(self) -> Norms:
        if self.index.shape[1] == 1:
            return Norms(lengths(self.gradient[:, 0], exact=self.exact))
        gradient = self.gradient.double()
        same = (self.index[:, :, None] == self.index[:, None, :]).double()
        squared = (torch.bmm(same, gradient) * gradient).sum((1, 2)).abs()
        return Norms(squared.sqrt(), None, self.spread())

    def spread(self) -> Tensor:
        return torch.linalg.vector_norm(self.gradient, dim=2, dtype=torch.float64).sum(1)

    def instantiate(self, start: int, stop: int) -> Tensor:
        gradient = self.gradient[start:stop].to(working(self.gradient.dtype))
        table = gradient.new_zeros(stop - start, self.entries, self.width)
        index = self.index[start:stop, :, None].expand_as(gradient)
        return table.scatter_add_(1, index, gradient).flatten(1)

    def weighted(self, factor: Tensor) -> Tensor:
        gradient = self.gradient.double() * factor.double()[:, None, None]
        per_model = self.units // self.stack
        model = torch.arange(self.stack, device=factor.device).repeat_interleave(per_model)
        table = gradient.new_zeros(self.stack * self.entries, self.width)
        index = self.index + (model * self.entries)[:, None]
        return table.index_add_(0, index.flatten(), gradient.flatten(0, 1)).view(self.stack, -1)


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
        table = (self.weight.shape[1], self.weight.shape[2])
        record.add(self.name, Lookup(x, gradient, table=table, units=record.units, stack=record.stack))


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
