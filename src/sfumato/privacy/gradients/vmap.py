"""Every unit's gradient at once by ``torch.func``: for losses that tracing does not understand, and for compression."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import grad, vmap

from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.contribution import Contribution, PerExample
from sfumato.privacy.gradients.per_class import Part
from sfumato.privacy.gradients.sparsify import Compressed
from sfumato.privacy.gradients.task import losses, refuse_outside_use, trainable_parameters, weighted_loss


def vmap_gradients(part: Part, loss: Loss, compression: Compressed | None = None) -> dict[str, Contribution]:
    """The contributions of one part of a batch, every unit's gradient held whole."""
    _check_outside_use(part, loss)
    gradients = _gradients(part, loss)
    if compression is not None:
        gradients = compression(gradients)
    return {name: PerExample(gradient.flatten(1)) for name, gradient in gradients.items()}


def _check_outside_use(part: Part, loss: Loss) -> None:
    """A parameter that the loss reaches by another way would look like a constant to torch.func."""
    model, first = part.model, part.batch.take(0, 1)
    real = trainable_parameters(model)
    plain = {name: p.detach() for name, p in real.items()}
    with torch.enable_grad():
        value = weighted_loss(losses(model, loss, first, plain), first)
        if value.requires_grad:
            reached = torch.autograd.grad(value, list(real.values()), allow_unused=True)
            refuse_outside_use([name for name, g in zip(real, reached, strict=True) if g is not None])


def _gradients(part: Part, loss: Loss) -> dict[str, Tensor]:
    """Parameter name → ``[units, *shape]``."""
    batch = part.batch
    plain = {name: p.detach() for name, p in trainable_parameters(part.model).items()}

    def unit_loss(values: dict[str, Tensor], *fields: Tensor) -> Tensor:
        images, labels, rows, draw, weights = fields[:5]
        random = replace(batch.random, rows=rows, draw=draw)
        one = Batch(images, labels, random, weights[None], fields[5] if len(fields) > 5 else None)
        return weighted_loss(losses(part.model, loss, one, values), one)

    fields = [batch.images, batch.labels, batch.random.rows, batch.random.draw, batch.weights.flatten()]
    if batch.state is not None:
        fields.append(batch.state)
    by_unit = [field.view(*batch.weights.shape, *field.shape[1:]) for field in fields]
    dims = (None, *(0 for _ in by_unit))
    gradients = vmap(grad(unit_loss), in_dims=dims, randomness="error")(plain, *by_unit)
    return {name: gradient.detach() for name, gradient in gradients.items()}
