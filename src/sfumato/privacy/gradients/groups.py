"""Parameter groups: every trainable parameter belongs to exactly one clip."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

from sfumato.privacy.gradients.per_class import PerClass
from sfumato.privacy.gradients.sparsify import Compressed

Clip = float | Mapping[str, float] | Compressed
"""One clip norm for the whole model, or one for each group, named by the start of its parameters' names; either may
come after a compression."""


Groups = dict[str, tuple[float, list[str]]]
"""Group name → (clip norm, parameter names)."""


def groups_of(model: nn.Module, clip: Clip) -> Groups:
    """Group name → (clip norm, parameter names). Refuses a parameter in no group or in two, and an unused group.

    The groups of a ``PerClass`` are named as in one of its models and hold that part of all of them.
    """
    if isinstance(clip, Compressed):
        clip = clip.clip
    clips = dict(clip) if isinstance(clip, Mapping) else {"": float(clip)}
    for name, norm in clips.items():
        if not (math.isfinite(norm) and norm > 0):
            raise ValueError(f"the clip of group {name or 'all'!r} must be a positive number, not {norm}")
    inner = model[0] if isinstance(model, PerClass) else model
    groups: Groups = {name: (float(norm), []) for name, norm in clips.items()}
    for parameter, tensor in inner.named_parameters():
        if not tensor.requires_grad:
            continue
        owners = [name for name in clips if not name or parameter == name or parameter.startswith(name + ".")]
        if len(owners) != 1:
            raise ValueError(
                f"parameter {parameter!r} belongs to {len(owners)} of the clip groups {sorted(clips)}; "
                "each parameter needs exactly one, or a record could move it without bound"
            )
        groups[owners[0]][1].append(parameter)
    for name, (_, parameters) in groups.items():
        if not parameters:
            raise ValueError(f"clip group {name or 'all'!r} names no trainable parameter of the model")
    if not isinstance(model, PerClass):
        return groups
    return {
        name: (norm, [f"models.{label}.{parameter}" for label in range(len(model)) for parameter in parameters])
        for name, (norm, parameters) in groups.items()
    }
