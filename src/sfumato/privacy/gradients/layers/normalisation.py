"""Group, layer and instance normalisation: the statistics are a row's own, the affine part is a bare parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from sfumato.privacy.gradients.errors import UntracedUse
from sfumato.privacy.gradients.layers.parameter import copies
from sfumato.privacy.gradients.tracing import RULES, Record, Tracked


def _affine(record: Record, normal: Tensor, weight: Any, bias: Any, shape: Callable[[Tensor], tuple[int, ...]]) -> Any:
    """``normal · weight + bias`` with a copy of each for every row."""
    for parameter, combine in ((weight, Tensor.mul), (bias, Tensor.add)):
        if parameter is None:
            continue
        if isinstance(parameter, Tracked):
            record.expect_rows(parameter.called, normal)
            normal = combine(normal, copies(parameter, shape(parameter)))
        else:
            normal = combine(normal, parameter.view(shape(parameter)))
    return normal


def _group(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    def normalise(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        if isinstance(input, Tracked):
            raise UntracedUse("a parameter is the input of a normalisation")
        normal = functional.group_norm(input, num_groups, eps=eps)
        return _affine(record, normal, weight, bias, lambda p: (len(p),) + (1,) * (input.dim() - 2))

    return normalise(*args, **kwargs)


def _layer(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    def normalise(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        if isinstance(input, Tracked) or input.dim() <= len(normalized_shape):
            raise UntracedUse("a layer normalisation reaches over the batch dimension")
        normal = functional.layer_norm(input, normalized_shape, eps=eps)
        positions = (1,) * (input.dim() - 1 - len(normalized_shape))
        return _affine(record, normal, weight, bias, lambda p: positions + tuple(p.shape))

    return normalise(*args, **kwargs)


def _instance(record: Record, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    def normalise(
        input: Any,
        running_mean: Any = None,
        running_var: Any = None,
        weight: Any = None,
        bias: Any = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if isinstance(input, Tracked) or (running_mean is not None and use_input_stats):
            raise UntracedUse("an instance normalisation that keeps running statistics mixes the batch")
        normal = functional.instance_norm(input, running_mean, running_var, None, None, use_input_stats, momentum, eps)
        return _affine(record, normal, weight, bias, lambda p: (len(p),) + (1,) * (input.dim() - 2))

    return normalise(*args, **kwargs)


RULES[functional.group_norm] = _group
RULES[functional.layer_norm] = _layer
RULES[functional.instance_norm] = _instance
