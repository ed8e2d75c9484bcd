"""What a gradient is asked of: rows of images, models, clip groups, and the released gradient.

A microbatch has one fixed shape and is padded with units of weight 0; no unit is ever dropped. A kernel is chosen by
the shape of its operands, so that a unit meets the same kernels whatever the size of the batch; and because sums are
exact (``sums.py``) the packing does not matter either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sfumato.privacy.randomness import Draws

Loss = Callable[..., Tensor]
"""``loss(model, images, labels, random)`` or, with private state, ``loss(model, images, labels, random, state)``: one
number per row. It is called with one row, and ``torch.func.vmap`` runs it for all."""


@dataclass(frozen=True, eq=False, repr=False)  # no repr: it would show pixels
class Batch:
    """``units * rows_per_unit`` rows, the rows of a unit side by side.

    A unit has several rows when it is a person with several images or when a loss is averaged over several draws.
    ``weights`` ``[units, rows_per_unit]`` says how: a unit's loss is the weighted sum of its rows' losses. Units with
    fewer images are padded with rows of weight 0.
    """

    images: Tensor
    labels: Tensor
    random: Draws
    weights: Tensor
    state: Tensor | None = None
    owners: Tensor | None = None
    """Whose state it is, for writing it back: a number for each record, or for each shard."""

    @property
    def units(self) -> int:
        return self.weights.shape[0]

    @property
    def rows_per_unit(self) -> int:
        return self.weights.shape[1]

    def take(self, start: int, stop: int) -> Batch:
        """The units ``start`` to ``stop``."""
        k = self.rows_per_unit
        rows = slice(start * k, stop * k)
        return self._rows(rows, self.weights[start:stop])

    def select(self, units: Tensor) -> Batch:
        """These units, by index."""
        k = self.rows_per_unit
        offsets = units.new_tensor(range(k))
        return self._rows((units[:, None] * k + offsets).flatten(), self.weights[units])

    def padded(self, units: int) -> Batch:
        """Filled up to this many units with rows of zeros and weight 0, which contribute nothing."""
        missing = units - self.units
        if missing <= 0:
            return self
        rows = missing * self.rows_per_unit

        def fill(tensor: Tensor, count: int) -> Tensor:
            return torch.cat([tensor, tensor.new_zeros(count, *tensor.shape[1:])])

        random = replace(self.random, rows=fill(self.random.rows, rows), draw=fill(self.random.draw, rows))
        state = None if self.state is None else fill(self.state, rows)
        weights = fill(self.weights, missing)
        return Batch(fill(self.images, rows), fill(self.labels, rows), random, weights, state)

    def _rows(self, rows: slice | Tensor, weights: Tensor) -> Batch:
        state = None if self.state is None else self.state[rows]
        return Batch(self.images[rows], self.labels[rows], self.random[rows], weights, state)


# Models


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


# Microbatches


@dataclass(frozen=True, eq=False)
class Microbatch:
    """Units whose gradients are found together.

    ``shared``: unit i of every part is the same unit, whose images are of several classes; its norm is taken over all
    of them.
    """

    parts: tuple[Part, ...]
    shared: bool = False

    @property
    def units(self) -> int:
        """How many units these are, padding included."""
        return self.parts[0].batch.units


def microbatch_size(expected_units: float, *, most: int, multiple: int = 1) -> int:
    """Units in a microbatch, from public numbers: how many a batch is expected to have, and how many fit.

    Three standard deviations above the expected size still fit into the smallest number of microbatches. A size above
    1 is made a ``multiple`` if one fits.
    """
    most = max(1, most)
    usual = max(1.0, expected_units + 3.0 * math.sqrt(expected_units))
    size = min(most, math.ceil(usual / math.ceil(usual / most)))
    if size == 1 or most < multiple:
        return size
    return min(-(-size // multiple), most // multiple) * multiple


def microbatches(model: nn.Module, batch: Batch, size: int) -> Iterator[Microbatch]:
    """The batch in microbatches of ``size`` units for each model."""
    if not isinstance(model, PerClass):
        for start in range(0, batch.units, size):
            yield Microbatch((Part(model, "", _slice(batch, start, size)),))
        return
    # One transfer from the device for all classes.
    labels, counts = batch.labels.cpu().view(batch.weights.shape), batch.weights.cpu() > 0
    first = counts.to(torch.int64).argmax(1, keepdim=True)
    own = labels.gather(1, first)
    several = (counts & (labels != own)).any(1)
    own = torch.where(counts.any(1) & ~several, own[:, 0], -1)
    for label in range(len(model)):
        rows = batch.select((own == label).nonzero()[:, 0].to(batch.weights.device))
        for start in range(0, rows.units, size):
            yield Microbatch((Part(model[label], model.prefix(label), _slice(rows, start, size)),))
    # Apart from the others, so that the way in which a unit is computed follows from its own images. Every class model
    # sees every such unit, rows of other classes at weight 0.
    mixed = batch.select(several.nonzero()[:, 0].to(batch.weights.device))
    for start in range(0, mixed.units, size):
        whole = _slice(mixed, start, size)
        parts = (Part(model[k], model.prefix(k), _of_class(whole, k)) for k in range(len(model)))
        yield Microbatch(tuple(parts), shared=True)


def _slice(batch: Batch, start: int, size: int) -> Batch:
    return batch.take(start, min(batch.units, start + size)).padded(size)


def _of_class(batch: Batch, label: int) -> Batch:
    weights = torch.where(batch.labels.view(batch.weights.shape) == label, batch.weights, 0.0)
    return replace(batch, labels=torch.full_like(batch.labels, label), weights=weights)


# Clip groups


@dataclass(frozen=True)
class Compressed:
    """A clip norm (or one for each group) of gradients that were compressed first.

    ``share`` of a unit's numbers, the largest, are kept and the others become zero. With ``signs`` the kept ones keep
    only their sign, at the length the vector had. Costs speed: every unit's gradient is held whole.
    """

    clip: float | Mapping[str, float]
    share: float = 0.9
    signs: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"compression keeps a share in (0, 1] of a gradient's numbers, not {self.share}")

    def __call__(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameter name → ``[units, *shape]``, compressed over all parameters of a unit together."""
        if not gradients:
            return gradients
        flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)
        kept = max(1, round(self.share * flat.shape[1]))
        least = _kept_from(flat.abs().nan_to_num(nan=0.0), kept)
        # What is not finite stays, so that whoever clips sees it and leaves the unit out.
        small = flat.abs() < least
        if self.signs:
            length = torch.where(small, 0.0, flat).norm(dim=1, keepdim=True)
            flat = flat.sign() * (length / (~small & (flat != 0)).sum(1, keepdim=True).clamp(min=1).sqrt())
        flat = torch.where(small, 0.0, flat)
        pieces = flat.split([gradient[0].numel() for gradient in gradients.values()], dim=1)
        return {name: piece.view_as(gradients[name]) for name, piece in zip(gradients, pieces, strict=True)}


def _kept_from(sizes: Tensor, kept: int) -> Tensor:
    """The smallest of the ``kept`` largest numbers of each row, ``[rows, 1]``.

    Selecting the shorter side takes a fraction of the time of ``kthvalue``, and the number is the same.
    """
    dropped = sizes.shape[1] - kept
    if dropped < kept:
        return sizes.topk(dropped + 1, dim=1, largest=False, sorted=False).values.amax(1, keepdim=True)
    return sizes.topk(kept, dim=1, sorted=False).values.amin(1, keepdim=True)


Clip = float | Mapping[str, float] | Compressed
"""One clip norm for the whole model, or one for each group, named by the start of its parameters' names; either may
come after a compression."""


Groups = dict[str, tuple[float, list[str]]]
"""Group name → (clip norm, parameter names)."""


def groups_of(model: nn.Module, clip: Clip) -> Groups:
    """Group name → (clip norm, parameter names).

    Guarantee. Every trainable parameter is in exactly one group; an unused group is refused.

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


# The released gradient


@dataclass(frozen=True)
class NoisyGradient:
    """One long vector: the pieces of the model's trainable parameters, in the order of ``names``."""

    model: nn.Module
    names: tuple[str, ...]
    vector: Tensor

    @classmethod
    def of(cls, model: nn.Module, parts: Mapping[str, Tensor]) -> NoisyGradient:
        return cls(model, tuple(parts), torch.cat([part.flatten() for part in parts.values()]))

    @property
    def parts(self) -> dict[str, Tensor]:
        """Parameter name → its piece, in its shape."""
        own = dict(self.model.named_parameters())
        pieces = self.vector.split([own[name].numel() for name in self.names])
        return {name: piece.view(own[name].shape) for name, piece in zip(self.names, pieces, strict=True)}

    def __truediv__(self, divisor: float | Tensor) -> NoisyGradient:
        return NoisyGradient(self.model, self.names, self.vector / divisor)

    def __mul__(self, factor: float | Tensor) -> NoisyGradient:
        return NoisyGradient(self.model, self.names, self.vector * factor)

    def __add__(self, other: NoisyGradient) -> NoisyGradient:
        if self.names != other.names:
            raise ValueError("only gradients of the same parameters, in the same order, can be added")
        return NoisyGradient(self.model, self.names, self.vector + other.vector)

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimiser take one step along it."""
        own = dict(self.model.named_parameters())
        for name, part in self.parts.items():
            own[name].grad = part.to(own[name].dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
