"""Compression before the clip: what is kept, that the clip still bounds a unit, and that the loop agrees."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import plain_loop
from sfumato.privacy import Randomness
from sfumato.privacy.gradients import Batch, Compressed, check, clipped_sum
from sfumato.privacy.gradients.batch import PerClass


def squares(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    return model(images.flatten(1)).square().sum(1)


def batch(units: int = 8, rows: int = 1) -> Batch:
    torch.manual_seed(0)
    ids = torch.arange(units * rows) // rows
    random = Randomness(0).draws(ids, torch.arange(units * rows) % rows, "test")
    return Batch(torch.rand(units * rows, 1, 2, 3), ids % 2, random, torch.full((units, rows), 1.0 / rows))


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def moved(model: nn.Module, whole: Batch, clip: Compressed, unit: int) -> float:
    rest = whole.select((torch.arange(whole.units) != unit).nonzero()[:, 0])
    a, b = clipped_sum(model, squares, whole, clip), clipped_sum(model, squares, rest, clip)
    return math.sqrt(sum(float((a[name] - b[name]).square().sum()) for name in a))


def test_the_largest_numbers_over_all_parameters_are_kept() -> None:
    gradients = {"a": torch.tensor([[1.0, -9.0], [0.0, 0.5]]), "b": torch.tensor([[[3.0], [0.2]], [[-4.0], [7.0]]])}
    kept = Compressed(1.0, 0.5)(gradients)
    assert kept["a"].tolist() == [[0.0, -9.0], [0.0, 0.0]] and kept["b"].tolist() == [[[3.0], [0.0]], [[-4.0], [7.0]]]
    signs = Compressed(1.0, 0.5, signs=True)(gradients)
    assert signs["a"][0, 0] == 0 and signs["a"][0, 1] == -signs["b"][0, 0, 0]
    torch.testing.assert_close(signs["a"][0, 1].square() + signs["b"][0, 0, 0].square(), torch.tensor(90.0))


def test_one_unit_moves_the_sum_by_its_clip_and_no_further() -> None:
    for rows in (1, 3):
        for clip in (Compressed(0.01, 0.9), Compressed(0.01, 0.1, signs=True)):
            model, whole = network(), batch(rows=rows)
            for unit in range(whole.units):
                assert 0.99 * 0.01 < moved(model, whole, clip, unit) <= 0.01


def test_groups_keep_their_own_clips() -> None:
    clip = Compressed({"0": 0.01, "2": 0.02}, 0.5)
    assert moved(network(), batch(), clip, 3) <= math.hypot(0.01, 0.02)


def test_the_plain_loop_agrees() -> None:
    for per_class in (False, True):
        model, whole = (PerClass([network(), network()]) if per_class else network()), batch()
        clip = Compressed(0.05, 0.3)
        fast, plain = clipped_sum(model, squares, whole, clip), plain_loop.clipped_sum(model, squares, whole, clip)
        for name, values in plain.items():
            torch.testing.assert_close(fast[name], values, rtol=1e-4, atol=1e-7)
        check(model, squares, whole, clip)
        full = clipped_sum(model, squares, whole, 0.05)
        assert any(not torch.allclose(full[name], fast[name], atol=1e-5) for name in full)


def test_a_unit_that_is_not_finite_counts_for_nothing() -> None:
    model, whole = network(), batch()
    whole.images[2] = float("nan")
    rest = whole.select((torch.arange(whole.units) != 2).nonzero()[:, 0])
    a, b = (clipped_sum(model, squares, part, Compressed(0.01, 0.9)) for part in (whole, rest))
    for name in a:
        torch.testing.assert_close(a[name], b[name])


def test_an_impossible_share_is_refused() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match="share"):
            Compressed(1.0, share)
