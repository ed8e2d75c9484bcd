"""A training loop of one's own spends what was planned, once, and finds it on the ledger."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.data import PrivateImages
from sfumato.privacy import Budget, BudgetExceeded, Ledger
from sfumato.training.own_loop import DPSGD

BUDGET = Budget(epsilon=1, delta=1e-5)


def private(declared_size: int | None = 40) -> PrivateImages:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 4, 4), dtype=np.uint8)
    return PrivateImages.from_arrays(pixels, np.arange(40) % 2, classes=2, declared_size=declared_size)


def loss(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    return nn.functional.cross_entropy(model(images.flatten(1)), labels, reduction="none")


def test_the_ledger_has_every_step_and_the_gradient_is_small(tmp_path: Path) -> None:
    file, model = tmp_path / "scans.ledger", nn.Linear(16, 2)
    steps = DPSGD(private(), BUDGET, sampling_rate=0.5, steps=3, ledger=file, device="cpu")
    for step in steps:
        step.backward(model, loss, clip_norm=1e-6)
        assert model.weight.grad is not None and 0 < model.weight.grad.abs().max() < 1e-5
    assert len(steps) == 3
    ledger = Ledger.read(file)
    assert ledger.spent() == pytest.approx(steps.plan.epsilon) and sum(event.steps for event in ledger.events()) == 3
    with pytest.raises(RuntimeError, match="twice"):
        next(iter(steps))
    with pytest.raises(BudgetExceeded):
        next(iter(DPSGD(private(), BUDGET, sampling_rate=0.5, steps=3, ledger=file, device="cpu")))


def test_what_would_be_private_is_asked_for() -> None:
    with pytest.raises(ValueError, match="divisor"):
        DPSGD(private(None), BUDGET, sampling_rate=0.5, steps=3)
    model = nn.Sequential(nn.Linear(16, 2), nn.BatchNorm1d(2))
    with pytest.raises(ValueError, match="BatchNorm"):
        next(iter(DPSGD(private(), BUDGET, sampling_rate=0.5, steps=3, device="cpu"))).backward(model, loss)


def test_a_step_gives_one_answer() -> None:
    model = nn.Linear(16, 2)
    steps = iter(DPSGD(private(), BUDGET, sampling_rate=0.5, steps=3, device="cpu"))
    step = next(steps)
    step.backward(model, loss)
    with pytest.raises(Exception, match="gradient"):
        step.backward(model, loss)
    assert torch.isfinite(model.weight.grad).all()  # type: ignore[arg-type]


def test_a_step_outside_its_loop_is_refused() -> None:
    step = next(iter(DPSGD(private(), BUDGET, sampling_rate=0.5, steps=3, device="cpu")))  # the loop is gone here
    with pytest.raises(BudgetExceeded):
        step.backward(nn.Linear(16, 2), loss)
