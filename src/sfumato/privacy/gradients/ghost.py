"""Three ways to know each unit's gradient well enough to clip it: one backward pass with books, torch.func, a loop."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from sfumato.privacy.gradients import layers as _layers  # noqa: F401  (enters the layer rules)
from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.contribution import Contribution, Norms, Several, gather, lengths
from sfumato.privacy.gradients.errors import UnsupportedModel, UntracedUse
from sfumato.privacy.gradients.loop import unit_gradient
from sfumato.privacy.gradients.per_class import Part, parts
from sfumato.privacy.gradients.rounding import DOUBLE, Arithmetic, arithmetic, working
from sfumato.privacy.gradients.sparsify import Compressed
from sfumato.privacy.gradients.tracing import Record, Tracked
from sfumato.privacy.randomness import Draws

Groups = dict[str, tuple[float, list[str]]]


class Pass(ABC):
    """``squared`` and ``spread`` are float64 ``[groups, units]``: squared norms, and what rounding is measured by."""

    squared: Tensor
    spread: Tensor
    arithmetic: Arithmetic
    sound: Tensor | None = None
    """Whether what was padded came out finite; None where nothing was."""

    @abstractmethod
    def add_weighted(self, factor: Tensor, total: dict[str, Tensor]) -> None:
        """Add ``Σ_u factor[group, u] · gradient_u`` to the totals; a name that is not there yet is entered."""


class _Task(nn.Module):
    """The loss as a module, so that the parameters inside can be exchanged by name."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Batch) -> Tensor:
        return batch.losses(self.loss, self.model)


def _total(rows: Tensor, batch: Batch) -> Tensor:
    weights = batch.weights.flatten()
    if rows.shape != weights.shape:
        raise UnsupportedModel(
            f"the loss must return one number for each row, a tensor of one dimension, not {rows.dim()} dimensions "
            "or another length: reduce over pixels, never over the batch"
        )
    return torch.where(weights > 0, rows * weights.to(rows.dtype), 0.0).sum()


def _trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _refuse_reached(reached: list[str]) -> None:
    if reached:
        raise UnsupportedModel(
            f"the loss reaches parameter {reached[0]!r} by another way than the model it is given (a tensor kept from "
            "before, or a list of weights inside a recurrent layer), so its gradient for one record cannot be told "
            "apart; use the parameters as attributes of the model"
        )


def _index(groups: Groups) -> dict[str, int]:
    return {name: i for i, (_, names) in enumerate(groups.values()) for name in names}


def _add(total: dict[str, Tensor], name: str, values: Tensor) -> None:
    """Flat vectors in float64."""
    if name in total:
        total[name] += values
    else:
        total[name] = values


class GhostClipping(Pass):
    """One forward and one backward pass; norms from what the layers saw; then the weighted weight gradients."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batch: Batch,
        groups: Groups,
        *,
        stacked: bool,
        exact: bool = False,
        tied: bool = True,
        trainable: dict[str, Tensor] | None = None,
    ) -> None:
        """``tied``: some weights may have two names. ``trainable``: the model's, if they are at hand."""
        trainable = _trainable(model) if trainable is None else trainable
        self._group = _index(groups)
        # A place for each unit, and one more for padding.
        zeros = torch.zeros(batch.units + 1, dtype=torch.float64, device=batch.weights.device)
        squares, spreads = [zeros] * len(groups), [zeros] * len(groups)
        self._parts: list[tuple[Part, dict[str, Contribution]]] = []
        self.signatures: set[tuple[object, ...]] = set()
        dtypes: set[torch.dtype] = set()
        for part in parts(model, batch, stacked=stacked):
            record = _record(part, loss, trainable=trainable, tied=tied)
            self.signatures.add((len(part.models) > 1, *record.signature))
            uses = {
                name: several[0] if len(several) == 1 else Several(several)
                for name, several in record.contributions.items()
            }
            self._parts.append((part, uses))
            gathered: dict[int, list[Norms]] = {}
            with torch.autocast(batch.images.device.type, enabled=False), torch.no_grad():
                for name, use in uses.items():
                    use.exact = exact
                    gathered.setdefault(self._group[part.prefixes[0] + name], []).append(use.norms())
                    dtypes.update(use.dtypes)
                for group, norms in gathered.items():
                    squared, spread = gather(norms)
                    if part.units is None:
                        squares[group], spreads[group] = (functional.pad(v, (0, 1)) for v in (squared, spread))
                    else:
                        squares[group] = squares[group].index_add(0, part.units, squared)
                        spreads[group] = spreads[group].index_add(0, part.units, spread)
        self.squared, self.spread = torch.stack(squares), torch.stack(spreads).sqrt()
        if stacked:
            # Padding must add nothing; were it not finite, it would still poison the weighted sums.
            self.sound = torch.isfinite(self.squared[:, -1]).all()
        self.squared, self.spread = self.squared[:, :-1], self.spread[:, :-1]
        self.arithmetic = arithmetic(dtypes, batch.images.device)

    @property
    def bytes(self) -> int:
        return sum(use.bytes for _, uses in self._parts for use in uses.values())

    def add_weighted(self, factor: Tensor, total: dict[str, Tensor]) -> None:
        names, sums = [], []
        with torch.autocast(factor.device.type, enabled=False), torch.no_grad():
            for part, uses in self._parts:
                factors = factor if part.units is None else functional.pad(factor, (0, 1))[:, part.units]
                rounded = {dtype: factors.to(dtype) for dtype in {working(use.dtypes[0]) for use in uses.values()}}
                for name, use in uses.items():
                    group = self._group[part.prefixes[0] + name]
                    values = use.weighted(rounded[working(use.dtypes[0])][group])
                    names += [prefix + name for prefix in part.prefixes]
                    sums += list(values)
            if sums:
                # One conversion for all parameters; a device starts slowly and runs fast.
                flat = torch.cat(sums).double()
                for name, values in zip(names, flat.split([len(value) for value in sums]), strict=True):
                    _add(total, name, values)


def _record(part: Part, loss: Loss, *, trainable: dict[str, Tensor], tied: bool) -> Record:
    """Run the loss forward and backward on tracked parameters."""
    batch, stack = part.batch, len(part.models)
    record = Record(rows=len(batch.labels), units=batch.units, stack=stack, device=batch.images.device)
    sources = [trainable] if part.prefixes == ("",) else [_trainable(model) for model in part.models]
    real = sources[0]
    tracked = {}
    for name, parameter in real.items():
        plain = parameter.detach() if stack == 1 else torch.stack([source[name].detach() for source in sources])
        tracked[name] = Tracked.of(name, parameter, plain, record)
    task = _Task(part.models[0], loss)
    with torch.enable_grad():
        try:
            values: dict[str, Tensor] = {"model." + name: value for name, value in tracked.items()}
            # Looking for shared weights takes time; should one be missed, it is found as a parameter reached otherwise.
            rows = functional_call(task, values, (batch,), tie_weights=tied)
        except (UntracedUse, UnsupportedModel, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
            raise UntracedUse(f"the loss fails under observation ({type(error).__name__})") from error
        total = _total(rows, batch)
        if not total.requires_grad:
            return record
        record.counting = True
        with torch.autocast(batch.images.device.type, enabled=False), torch._C.DisableTorchFunctionSubclass():
            inputs = [record.anchor, *tracked.values(), *(p for source in sources for p in source.values())]
            _, *reached = torch.autograd.grad(total, inputs, allow_unused=True)
    names = [*tracked, *(name for source in sources for name in source)]
    _refuse_reached([name for name, g in zip(names[len(tracked) :], reached[len(tracked) :], strict=True)
                     if g is not None])  # fmt: skip
    for name, gradient in zip(tracked, reached, strict=False):
        if gradient is not None:
            raise UntracedUse(f"parameter {name!r} is used where the book-keeping does not look")
    return record


class VmapGradients(Pass):
    """``torch.func``: every unit's gradient at once, whole. For graphs the books do not understand."""

    def __init__(
        self, model: nn.Module, loss: Loss, batch: Batch, groups: Groups, compression: Compressed | None = None
    ) -> None:
        self._group = _index(groups)
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
                _add(total, full, factors[self._group[full]] @ gradient.double().flatten(1))


def _gradients(part: Part, loss: Loss) -> dict[str, Tensor]:
    """Parameter name → ``[units, *shape]``."""
    batch, model = part.batch, part.models[0]
    task = _Task(model, loss)
    plain = {"model." + name: p.detach() for name, p in _trainable(model).items()}
    # A parameter that the loss reaches by another way would look like a constant to torch.func.
    first = batch.take(0, 1)
    with torch.enable_grad():
        value = _total(functional_call(task, plain, (first,)), first)
        if value.requires_grad:
            real = _trainable(model)
            reached = torch.autograd.grad(value, list(real.values()), allow_unused=True)
            _refuse_reached([name for name, g in zip(real, reached, strict=True) if g is not None])
    k, shape = batch.rows_per_unit, (batch.units, batch.rows_per_unit)

    def unit_loss(
        values: dict[str, Tensor], images: Tensor, labels: Tensor, rows: Tensor, draw: Tensor, weights: Tensor,
        state: Tensor | None,
    ) -> Tensor:  # fmt: skip
        one = Batch(images, labels, Draws(batch.random.key, rows, draw), weights[None], state)
        return _total(functional_call(task, values, (one,)), one)

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


class PerExampleLoop(Pass):
    """One unit after another. For very few units, and to check the others."""

    def __init__(self, model: nn.Module, loss: Loss, batch: Batch, groups: Groups) -> None:
        self._group = _index(groups)
        with torch.enable_grad():
            self._gradients = [unit_gradient(model, loss, batch.take(i, i + 1)) for i in range(batch.units)]
        norms = [
            [torch.stack([g[name].square().sum() for name in names]).sum() for _, names in groups.values()]
            for g in self._gradients
        ]
        self.squared = torch.stack([torch.stack(row) for row in norms]).t()
        self.spread = self.squared.sqrt()
        self.arithmetic = DOUBLE

    def add_weighted(self, factor: Tensor, total: dict[str, Tensor]) -> None:
        for unit, gradient in enumerate(self._gradients):
            for name, value in gradient.items():
                _add(total, name, (factor[self._group[name], unit] * value).flatten())
