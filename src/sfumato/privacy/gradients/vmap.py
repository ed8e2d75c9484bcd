"""Every unit's gradient at once by ``torch.func``: for losses that tracing does not understand, and for compression."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.contribution import Contribution, PerExample
from sfumato.privacy.gradients.per_class import Part
from sfumato.privacy.gradients.sparsify import Compressed
from sfumato.privacy.gradients.task import Task, refuse_outside_use, trainable_parameters, weighted_loss


class VmapGradients:
    """The contributions of one part of a batch, every unit's gradient held whole."""

    def __init__(self, part: Part, loss: Loss, compression: Compressed | None = None) -> None:
        if len(part.models) > 1:
            raise ValueError("stacked models are traced; torch.func takes one model at a time")
        _check_outside_use(part, loss)
        gradients = _gradients(part, loss)
        if compression is not None:
            gradients = compression(gradients)
        self.contributions: dict[str, Contribution] = {
            name: PerExample(gradient.flatten(1), stack=1) for name, gradient in gradients.items()
        }


def _check_outside_use(part: Part, loss: Loss) -> None:
    """A parameter that the loss reaches by another way would look like a constant to torch.func."""
    model, first = part.models[0], part.batch.take(0, 1)
    real = trainable_parameters(model)
    plain = {"model." + name: p.detach() for name, p in real.items()}
    with torch.enable_grad():
        value = weighted_loss(functional_call(Task(model, loss), plain, (first,)), first)
        if value.requires_grad:
            reached = torch.autograd.grad(value, list(real.values()), allow_unused=True)
            refuse_outside_use([name for name, g in zip(real, reached, strict=True) if g is not None])


def _gradients(part: Part, loss: Loss) -> dict[str, Tensor]:
    """Parameter name → ``[units, *shape]``."""
    batch, task = part.batch, Task(part.models[0], loss)
    plain = {"model." + name: p.detach() for name, p in trainable_parameters(part.models[0]).items()}

    def unit_loss(values: dict[str, Tensor], *fields: Tensor) -> Tensor:
        images, labels, rows, draw, weights = fields[:5]
        random = replace(batch.random, rows=rows, draw=draw)
        one = Batch(images, labels, random, weights[None], fields[5] if len(fields) > 5 else None)
        return weighted_loss(functional_call(task, values, (one,)), one)

    fields = [batch.images, batch.labels, batch.random.rows, batch.random.draw, batch.weights.flatten()]
    if batch.state is not None:
        fields.append(batch.state)
    by_unit = [field.view(*batch.weights.shape, *field.shape[1:]) for field in fields]
    dims = (None, *(0 for _ in by_unit))
    gradients = vmap(grad(unit_loss), in_dims=dims, randomness="error")(plain, *by_unit)
    return {name.removeprefix("model."): gradient.detach() for name, gradient in gradients.items()}
