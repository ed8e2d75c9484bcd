"""Adam (Kingma and Ba, 2015) as a function of tensors, for weights that belong to many owners at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BETA1, EPS = 0.9, 1e-8


def adam_update(
    gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, step: int | Tensor, learning_rate: float, beta2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What one step of Adam subtracts from the weights, and the two moving averages after it.

    Args:
        gradient: The gradient at the present weights.
        exp_avg: The moving average of gradients.
        exp_avg_sq: The moving average of squared gradients.
        step: The number of this step, counted from 1; a tensor where owners have taken different numbers of steps.
        learning_rate: The step size.
        beta2: The decay of ``exp_avg_sq``. The decay of ``exp_avg`` is always 0.9.
    """
    exp_avg = BETA1 * exp_avg + (1 - BETA1) * gradient
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient.square()
    corrected, corrected_sq = exp_avg / (1 - BETA1**step), exp_avg_sq / (1 - beta2**step)
    return learning_rate * corrected / (corrected_sq.sqrt() + EPS), exp_avg, exp_avg_sq


def minimise(
    loss: Callable[[Tensor, int], Tensor],
    start: Tensor,
    *,
    steps: int,
    learning_rate: float,
    beta2: float = 0.99,
    project: Callable[[Tensor], Tensor] = lambda values: values,
) -> Tensor:
    """The values after ``steps`` steps of Adam from ``start``. The first dimension counts owners.

    ``loss(values, step)`` is a sum over the owners in which each term depends on one owner's values only, so that the
    owners are minimised side by side and independently. After every step ``project`` brings the values back into
    their domain. An owner whose values become infinite or NaN keeps its start.
    """
    values, exp_avg, exp_avg_sq = start, torch.zeros_like(start), torch.zeros_like(start)
    for number in range(steps):
        point = values.detach().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(point, number), point)
        change, exp_avg, exp_avg_sq = adam_update(
            gradient, exp_avg, exp_avg_sq, step=number + 1, learning_rate=learning_rate, beta2=beta2
        )
        values = project(values - change)
    finite = torch.isfinite(values).flatten(1).all(1).view(-1, *[1] * (start.ndim - 1))
    return torch.where(finite, values, start).detach()
