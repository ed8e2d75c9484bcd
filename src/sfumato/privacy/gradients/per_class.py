"""One model for each class, trained as one: a record moves its own class's slice and no other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from sfumato.privacy.gradients.batch import Batch


class PerClass(nn.Module):
    """K models of one architecture, ``models.0`` to ``models.K-1``, indexed by label.

    As ``model`` of ``clipped_sum`` the loss is called with ONE inner model and rows of its class only, and clip groups
    are named as in the inner model. A group's clip holds for a unit's gradient over all classes at once, because a
    person may own images of several.

    Parameters keep their usual names in the state dict, ``models.<class>.<name>``. The classes go one after another.

    >>> classes = PerClass([nn.Linear(2, 1) for _ in range(3)])
    >>> len(classes), classes[2].weight.shape
    (3, torch.Size([1, 2]))
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise ValueError("a model for each class needs at least one class")
        shapes = [[(n, p.shape, p.dtype, p.requires_grad) for n, p in model.named_parameters()] for model in models]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError("the models of all classes must have parameters of the same names, shapes and dtypes")
        self.models = nn.ModuleList(models)

    def __len__(self) -> int:
        return len(self.models)

    def __getitem__(self, label: int) -> nn.Module:
        return self.models[label]

    @staticmethod
    def prefix(label: int) -> str:
        """What the names of a class's parameters start with."""
        return f"models.{label}."


@dataclass(frozen=True, eq=False)
class Part:
    """Rows that one model takes; ``prefix`` is what its parameters' names start with in the whole."""

    model: nn.Module
    prefix: str
    batch: Batch
