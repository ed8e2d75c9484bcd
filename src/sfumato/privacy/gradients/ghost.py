"""Ghost clipping with book-keeping (Bu et al., 2023): one forward and one backward pass, norms from what layers saw."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from sfumato.privacy.gradients import layers as _layers  # noqa: F401  (registers the layer rules)
from sfumato.privacy.gradients.batch import Batch, Loss
from sfumato.privacy.gradients.contribution import Contribution, Several
from sfumato.privacy.gradients.errors import UnsupportedModel, UntracedUse
from sfumato.privacy.gradients.norms import Norms, gather
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
from sfumato.privacy.gradients.rounding import arithmetic, working
from sfumato.privacy.gradients.tracing import Record, Tracked


class GhostClipping(PerExampleGradients):
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
        trainable = trainable_parameters(model) if trainable is None else trainable
        self._group = group_index(groups)
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
                    add_to(total, name, values)


def _record(part: Part, loss: Loss, *, trainable: dict[str, Tensor], tied: bool) -> Record:
    """Run the loss forward and backward on tracked parameters."""
    batch, stack = part.batch, len(part.models)
    record = Record(rows=len(batch.labels), units=batch.units, stack=stack, device=batch.images.device)
    sources = [trainable] if part.prefixes == ("",) else [trainable_parameters(model) for model in part.models]
    real = sources[0]
    tracked = {}
    for name, parameter in real.items():
        plain = parameter.detach() if stack == 1 else torch.stack([source[name].detach() for source in sources])
        tracked[name] = Tracked.of(name, parameter, plain, record)
    task = Task(part.models[0], loss)
    with torch.enable_grad():
        try:
            values: dict[str, Tensor] = {"model." + name: value for name, value in tracked.items()}
            # Looking for shared weights takes time; should one be missed, it is found as a parameter reached otherwise.
            rows = functional_call(task, values, (batch,), tie_weights=tied)
        except (UntracedUse, UnsupportedModel, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
            raise UntracedUse(f"the loss fails under observation ({type(error).__name__})") from error
        total = weighted_loss(rows, batch)
        if not total.requires_grad:
            return record
        record.counting = True
        with torch.autocast(batch.images.device.type, enabled=False), torch._C.DisableTorchFunctionSubclass():
            inputs = [record.anchor, *tracked.values(), *(p for source in sources for p in source.values())]
            _, *reached = torch.autograd.grad(total, inputs, allow_unused=True)
    names = [*tracked, *(name for source in sources for name in source)]
    refuse_outside_use(
        [name for name, g in zip(names[len(tracked) :], reached[len(tracked) :], strict=True) if g is not None]
    )
    for name, gradient in zip(tracked, reached, strict=False):
        if gradient is not None:
            raise UntracedUse(f"parameter {name!r} is used where the book-keeping does not look")
    return record
