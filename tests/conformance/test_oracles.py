"""Every sum of clipped gradients that a certified method asks for, by three ways that share no step before the clip.

The engine takes one traced pass; ``oracle_sum`` forms every unit's gradient by ``torch.func``; ``plain_loop`` takes one
row at a time without ``torch.func``, and clips by itself.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import plain_loop
from conformance.test_methods import CERTIFIED, FIRST, budget_for
from sfumato.methods import find
from sfumato.privacy import step
from sfumato.privacy.gradients import Batch, Clip, Loss, clipped_sum, terms
from sfumato.privacy.gradients.engine import oracle_sum
from worst_case import worst_case_images

APART = 2e-5
"""Relative: rounding of float32 sums in another order, and of ghost clipping."""

WITHOUT = {"dp-merf", "dp-mixture", "gs-wgan", "privae batch-aggregation"}
"""What asks for sums of features, or for the gradient of the whole batch, and for no sum of clipped gradients."""

Ways = dict[str, dict[str, Tensor]]


def distance(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    apart = math.sqrt(sum(float((found[name] - value).square().sum()) for name, value in expected.items()))
    return apart / max(1e-300, math.sqrt(sum(float(value.square().sum()) for value in expected.values())))


def test_a_sum_with_another_clip_is_further_away_than_rounding() -> None:
    small, large = {"weight": torch.ones(4)}, {"weight": torch.ones(4) * (1.0 + 2.0 * APART)}
    assert distance(large, small) > APART


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, marks=() if FIRST[name] == variant else pytest.mark.long)
        for name, variant in CERTIFIED
    ],
)
def test_three_ways_give_the_same_sum(name: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Ways] = []

    def compared(model: nn.Module, loss: Loss, batch: Batch, clip: Clip) -> None:
        engine, oracle = clipped_sum(model, loss, batch, clip), oracle_sum(model, loss, batch, clip)
        seen.append({"engine": engine, "oracle": oracle, "loop": plain_loop.clipped_sum(model, loss, batch, clip)})

    monkeypatch.setattr(step, "check", compared)
    monkeypatch.setattr(terms, "check", compared)
    method = find(name).small(variant)
    method.fit(worst_case_images(), budget_for(method), seed=3, device="cpu")
    for ways in seen:
        assert distance(ways["engine"], ways["oracle"]) < APART
        assert distance(ways["engine"], ways["loop"]) < APART
    assert bool(seen) == WITHOUT.isdisjoint({name, f"{name} {variant}"})
