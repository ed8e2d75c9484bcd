"""One forward and one backward pass over traced parameters: what every parameter contributes to each unit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sfumato.privacy.gradients import layers as _layers  # noqa: F401  (registers the layer rules)
from sfumato.privacy.gradients.batch import Loss
from sfumato.privacy.gradients.contribution import Contribution, merge
from sfumato.privacy.gradients.errors import UnsupportedModel, UntracedUse
from sfumato.privacy.gradients.per_class import Part
from sfumato.privacy.gradients.task import losses, refuse_outside_use, trainable_parameters, weighted_loss
from sfumato.privacy.gradients.tracing import Record, Tracked


class TracedPass:
    """The contributions of one part of a batch, and the memory it took."""

    def __init__(
        self, part: Part, loss: Loss, values: Mapping[str, Tensor] | None = None, *, channels_last: bool = False
    ) -> None:
        """``values`` stand in for the model's parameters and buffers, as in a compiled function."""
        record = _record(part, loss, values, channels_last=channels_last)
        with torch.no_grad(), torch.autocast(part.batch.images.device.type, enabled=False):
            self.contributions: dict[str, Contribution] = {
                name: merge(uses) for name, uses in record.contributions.items()
            }
        # Inputs and output gradients, the largest temporary, and what the contributions hold.
        held = sum(contribution.bytes_per_unit for contribution in self.contributions.values())
        self.bytes_per_unit = (2 * record.held + 2 * record.written) / part.batch.units + held


def _record(part: Part, loss: Loss, values: Mapping[str, Tensor] | None, *, channels_last: bool) -> Record:
    batch = part.batch
    record = Record(units=batch.units, device=batch.images.device, channels_last=channels_last)
    parameters = trainable_parameters(part.model)
    values = parameters if values is None else values
    tracked = {n: Tracked.of(n, parameter, values[n].detach(), record) for n, parameter in parameters.items()}
    with torch.enable_grad():
        total = weighted_loss(_losses(part, loss, {**values, **tracked}), batch)
        if not total.requires_grad:
            return record
        record.counting = True
        with torch.autocast(batch.images.device.type, enabled=False), torch._C.DisableTorchFunctionSubclass():
            leaves = [record.anchor, *tracked.values(), *parameters.values()]
            _, *reached = torch.autograd.grad(total, leaves, allow_unused=True)
    own, outside = reached[: len(tracked)], reached[len(tracked) :]
    refuse_outside_use([n for n, gradient in zip(parameters, outside, strict=True) if gradient is not None])
    for name, gradient in zip(tracked, own, strict=True):
        if gradient is not None:
            raise UntracedUse(f"parameter {name!r} is used where tracing does not look")
    return record


def _losses(part: Part, loss: Loss, values: Mapping[str, Tensor]) -> Tensor:
    try:
        return losses(part.model, loss, part.batch, values)
    except (UntracedUse, UnsupportedModel, torch.OutOfMemoryError):
        raise
    except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
        raise UntracedUse(f"the loss fails under tracing ({type(error).__name__}: {error})") from error
