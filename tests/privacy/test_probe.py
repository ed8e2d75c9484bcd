"""Losses and modules that break the contract are refused before the first step."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradient_cases import Classifier, make_batch, squared_error
from sfumato.privacy.gradients import UnsupportedModel, check, check_rows, clipped_sum, probe
from sfumato.privacy.randomness import Draws


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_honest_loss_passes(dtype: torch.dtype) -> None:
    for units in (0, 1, 2, 9):
        torch.manual_seed(0)
        check(Classifier().to(dtype), squared_error, make_batch(units, 2, dtype=dtype), 0.5)


def centred(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
    return squared_error(m, x - x.mean(0, keepdim=True), y, r)


def ranked(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
    rows = squared_error(m, x, y, r)
    return rows * (rows >= rows.median()).to(rows.dtype)


def counted(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
    same = (y[:, None] == y[None]).sum(1)
    return squared_error(m, x, y, r) / same


@pytest.mark.parametrize("loss", [centred, ranked, counted])
def test_rows_that_see_each_other_are_refused(loss: object) -> None:
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        with pytest.raises(UnsupportedModel, match="moved another record's loss"):
            check(Classifier().to(dtype), loss, make_batch(8, dtype=dtype), 0.5)


def test_rows_that_see_each_other_are_refused_at_any_scale_of_the_loss() -> None:
    def small(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return 1e-8 * centred(m, x, y, r)

    torch.manual_seed(0)
    with pytest.raises(UnsupportedModel, match="moved another record's loss"):
        check(Classifier(), small, make_batch(8, dtype=torch.float32), 0.5)


def test_a_loss_that_knows_the_batch_size_is_refused() -> None:
    def mean(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return squared_error(m, x, y, r) / len(x)

    with pytest.raises(UnsupportedModel, match="number of rows"):
        check(Classifier().double(), mean, make_batch(8), 0.5)


@pytest.mark.parametrize(("rows", "refused"), [(1, False), (4, True)])
def test_single_rows_may_be_rounded_otherwise_in_another_batch_size(rows: int, refused: bool) -> None:
    """An iterative function can follow the sign of a number near zero; a size that matters shows in most rows."""

    def features(images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        step = torch.where(labels < rows, float(len(images)), 0.0)
        return images.flatten(1) + step[:, None]

    batch = replace(make_batch(6), labels=torch.arange(6))
    with pytest.raises(UnsupportedModel, match="number of rows") if refused else contextlib.nullcontext():
        check_rows(features, batch)


def test_what_is_kept_at_one_batch_size_alone_is_refused() -> None:
    kept = []

    def features(images: Tensor, labels: Tensor, random: Draws, rows: int) -> Tensor:
        if len(images) == rows:
            kept.append(images.sum())
        return images.flatten(1)

    for rows in (1, 2, probe.PROBED, 9):
        with pytest.raises(UnsupportedModel, match="still alive"):
            check_rows(partial(features, rows=rows), make_batch(9))


def test_draws_outside_random_are_refused() -> None:
    def noisy(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return squared_error(m, x + 0.1 * torch.randn_like(x), y, r)

    with pytest.raises(UnsupportedModel, match="random"):
        check(Classifier().double(), noisy, make_batch(8), 0.5)


def test_modules_that_mix_or_draw_are_refused() -> None:
    modules = [
        (nn.BatchNorm2d(2), "GroupNorm"),
        (nn.BatchNorm2d(2, track_running_stats=False).eval(), "GroupNorm"),
        (nn.SyncBatchNorm(2), "GroupNorm"),
        (nn.InstanceNorm2d(2, track_running_stats=True), "track_running_stats=False"),
        (nn.Dropout(0.1), "random.uniform"),
    ]

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return m(x).sum(1)

    for module, words in modules:
        model = nn.Sequential(nn.Conv2d(2, 2, 1), module, nn.Flatten())
        for call in (check, clipped_sum):
            with pytest.raises(UnsupportedModel, match=words):
                call(model, loss, make_batch(5, dtype=torch.float32), 1.0)


@pytest.mark.parametrize("times", [1, 2])
def test_a_fast_sum_that_is_wrong_is_refused_when_it_is_wrong_twice(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once may be a ReLU whose input is zero but for rounding."""
    left = [2.0] * times

    def wrong(*given: Any, **options: object) -> dict[str, Tensor]:
        factor = left.pop() if left else 1.0
        return {name: factor * value for name, value in clipped_sum(*given).items()}

    monkeypatch.setattr(probe, "clipped_sum", wrong)
    if times == 1:
        check(Classifier().double(), squared_error, make_batch(8), 0.5)
        return
    with pytest.raises(UnsupportedModel, match="disagrees with the plain loop"):
        check(Classifier().double(), squared_error, make_batch(8), 0.5)


def test_public_statistics_may_stay() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2).eval(), nn.Flatten()).double()
    check(model, lambda m, x, y, r: m(x).square().sum(1), make_batch(6), 0.5)


def test_messages_hold_no_private_number() -> None:
    batch = make_batch(8)
    batch = replace(batch, images=batch.images * 0 + 0.123456789)
    with pytest.raises(UnsupportedModel) as refusal:
        check(Classifier().double(), centred, batch, 0.5)
    assert "0.12" not in str(refusal.value)
    assert "0.12" not in repr(batch)
