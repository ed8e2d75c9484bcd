"""One forward and one backward pass over traced parameters: what every parameter contributes to each unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from sfumato.privacy.gradients import layers as _layers  # noqa: F401  (registers the layer rules)
from sfumato.privacy.gradients.batch import Loss
from sfumato.privacy.gradients.contribution import Contribution, merge
from sfumato.privacy.gradients.errors import UnsupportedModel, UntracedUse
from sfumato.privacy.gradients.per_class import Part
from sfumato.privacy.gradients.task import Task, refuse_outside_use, trainable_parameters, weighted_loss
from sfumato.privacy.gradients.tracing import Record, Tracked

Values = Sequence[Mapping[str, Tensor]]
"""Parameter name → value, for each of the stacked models."""


class TracedPass:
    """The contributions of one part of a batch, the shapes that were met, and the memory it took."""

    def __init__(self, part: Part, loss: Loss, values: Values | None = None, *, channels_last: bool = False) -> None:
        """``values`` stand in for the models' parameters and the first model's buffers, as in a compiled function."""
        record = _record(part, loss, values, channels_last=channels_last)
        self.signature: tuple[object, ...] = (len(part.models) > 1, *record.signature)
        with torch.no_grad(), torch.autocast(part.batch.images.device.type, enabled=False):
            self.contributions: dict[str, Contribution] = {
                name: merge(uses) for name, uses in record.contributions.items()
            }
        # Inputs and output gradients, the largest temporary, and what the contributions hold.
        held = sum(contribution.bytes_per_unit for contribution in self.contributions.values())
        self.bytes_per_unit = (2 * record.held + 2 * record.written) / part.batch.units + held


def _record(part: Part, loss: Loss, values: Values | None, *, channels_last: bool) -> Record:
    batch, stack = part.batch, len(part.models)
    record = Record(rows=len(batch.labels), units=batch.units, stack=stack, device=batch.images.device)
    record.channels_last = channels_last
    sources = [trainable_parameters(model) for model in part.models]
    values = sources if values is None else values
    tracked = {}
    for name, parameter in sources[0].items():
        plain = values[0][name] if stack == 1 else torch.stack([own[name] for own in values])
        tracked[name] = Tracked.of(name, parameter, plain.detach(), record)
    with torch.enable_grad():
        rows = _rows(part, loss, {**values[0], **tracked})
        total = weighted_loss(rows, batch)
        if not total.requires_grad:
            return record
        record.counting = True
        with torch.autocast(batch.images.device.type, enabled=False), torch._C.DisableTorchFunctionSubclass():
            outside = [p for source in sources for p in source.values()]
            _, *reached = torch.autograd.grad(total, [record.anchor, *tracked.values(), *outside], allow_unused=True)
    names = [name for source in sources for name in source]
    refuse_outside_use([n for n, gradient in zip(names, reached[len(tracked) :], strict=True) if gradient is not None])
    for name, gradient in zip(tracked, reached, strict=False):
        if gradient is not None:
            raise UntracedUse(f"parameter {name!r} is used where tracing does not look")
    return record


def _rows(part: Part, loss: Loss, own: Mapping[str, Tensor]) -> Tensor:
    """The loss of every row, with these tensors in place of the model's own."""
    values = {"model." + name: value for name, value in own.items()}
    try:
        rows: Tensor = functional_call(Task(part.models[0], loss), values, (part.batch,))
    except (UntracedUse, UnsupportedModel, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise UntracedUse(f"the loss fails under tracing ({type(error).__name__})") from error
    return rows
