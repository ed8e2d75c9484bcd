"""Every unit's gradient at once by ``torch.func``: for losses that ghost clipping cannot trace."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.norms import lengths
from sfumato.privacy.gradients.per_class import Part, parts
from sfumato.privacy.gradients.per_example import (
    Groups,
    PerExampleGradients,
    Task,
    add_to,
    group_index,
    refuse_outside_use,
    trainable_parameters,
    weighted_loss,
)
from sfumato.privacy.gradients.rounding import DOUBLE
from sfumato.privacy.gradients.sparsify import Compressed
from sfumato.privacy.randomness import Draws


class VmapGradients(PerExampleGradients):
    """``torch.func``: every unit's gradient at once, whole. For graphs the books do not understand."""

    def __init__(
        self, model: nn.Module, loss: Loss, batch: Batch, groups: Groups, compression: Compressed | None = None
    ) -> None:
        self._group = group_index(groups)
        self.squared = torch.zeros((len(groups), batch.units), dtype=torch.float64, device=batch.weights.device)
        self._parts: list[tuple[Part, dict[str, Tensor]]] = []
        for part in parts(model, batch, stacked=False):
            gradients = _gradients(part, loss)
            if compression is not None:
                gradients = compression(gradients)
            self._parts.append((part, gradients))
            for name, gradient in gradients.items():
                group = self._group[part.prefixes[0] + name]
                squared = lengths(gradient.flatten(1), exact=True).square()
                if part.units is None:
                    self.squared[group] += squared
                else:
                    self.squared[group].index_add_(0, part.units, squared)
        self.spread = self.squared.sqrt()
        # The vectors are there, and are scaled and added in float64: no operand is rounded after the norm is known.
        self.arithmetic = DOUBLE

    def add_weighted(self, factor: Tensor, total: dict[str, Tensor]) -> None:
        for part, gradients in self._parts:
            factors = factor if part.units is None else factor[:, part.units]
            for name, gradient in gradients.items():
                full = part.prefixes[0] + name
                add_to(total, full, factors[self._group[full]] @ gradient.double().flatten(1))


def _gradients(part: Part, loss: Loss) -> dict[str, Tensor]:
    """Parameter name → ``[units, *shape]``."""
    batch, model = part.batch, part.models[0]
    task = Task(model, loss)
    plain = {"model." + name: p.detach() for name, p in trainable_parameters(model).items()}
    # A parameter that the loss reaches by another way would look like a constant to torch.func.
    first = batch.take(0, 1)
    with torch.enable_grad():
        value = weighted_loss(functional_call(task, plain, (first,)), first)
        if value.requires_grad:
            real = trainable_parameters(model)
            reached = torch.autograd.grad(value, list(real.values()), allow_unused=True)
            refuse_outside_use([name for name, g in zip(real, reached, strict=True) if g is not None])
    k, shape = batch.rows_per_unit, (batch.units, batch.rows_per_unit)

    def unit_loss(
        values: dict[str, Tensor],
        images: Tensor,
        labels: Tensor,
        rows: Tensor,
        draw: Tensor,
        weights: Tensor,
        state: Tensor | None,
    ) -> Tensor:
        one = Batch(images, labels, Draws(batch.random.key, rows, draw), weights[None], state)
        return weighted_loss(functional_call(task, values, (one,)), one)

    state = None if batch.state is None else batch.state.view(*shape, *batch.state.shape[1:])
    arguments = (
        batch.images.view(*shape, *batch.images.shape[1:]),
        batch.labels.view(*shape, *batch.labels.shape[1:]),
        batch.random.rows.view(shape),
        batch.random.draw.view(shape),
        batch.weights.view(batch.units, k),
    )
    dims = (None, 0, 0, 0, 0, 0, None if state is None else 0)
    gradients = vmap(grad(unit_loss), in_dims=dims, randomness="error")(plain, *arguments, state)
    return {name.removeprefix("model."): gradient.detach() for name, gradient in gradients.items()}
