"""Modules that mix the rows of a batch, or draw from torch's global generator: refused before anything is counted."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from sfumato.privacy.gradients.errors import UnsupportedModel


def refuse_mixing(model: nn.Module) -> None:
    """Batch normalisation by batch statistics, running statistics that are being updated, dropout."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, _InstanceNorm):
            if module.training and module.track_running_stats:
                raise UnsupportedModel(
                    f"{kind} {name!r} updates running statistics from the batch, and they are never noised; "
                    "build it with track_running_stats=False"
                )
        elif isinstance(module, _BatchNorm):
            if module.training or module.running_mean is None:
                raise UnsupportedModel(
                    f"{kind} {name!r} normalises a record by the other records of its batch, so one record moves "
                    "every gradient and no clip bounds it; use GroupNorm or LayerNorm, or call .eval() on a module "
                    "whose statistics are public"
                )
        elif isinstance(module, _DropoutNd) and module.training and module.p > 0:
            raise UnsupportedModel(
                f"{kind} {name!r} draws from torch's global generator, so a record's draws depend on who else is in "
                "the batch; remove it or draw the mask in the loss with random.uniform(name, ...)"
            )
