"""Sums of outer products: exact, bounded by the square of the clip norm, symmetric under noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.data import PrivateImages
from sfumato.privacy import Block, Budget, Curator, Ledger, Plan, Randomness, SubsampledGaussian
from sfumato.privacy.gradients.batch import Batch
from sfumato.privacy.mechanism import Query
from sfumato.privacy.randomness import Draws
from sfumato.privacy.sums import clipped_moment_sum, half_vector, moment_spacing, symmetric

CLIP = 0.7


class Exact:
    """A tape that keeps the sums behind the noise."""

    def exchange(self, query: Query, answer: Tensor, *, charges: int) -> Tensor:
        (self.sum,), self.public = query.sums, query.public
        return answer


def collection(persons: bool) -> PrivateImages:
    random = np.random.default_rng(3)
    pixels = random.integers(0, 256, (300, 1, 4, 4), dtype=np.uint8)
    pixels[7] = 0
    owners = np.arange(300) // 7 if persons else None
    return PrivateImages(pixels, random.integers(0, 3, 300), classes=("a", "b", "c"), persons=owners)


def asked(private: PrivateImages, *, by_class: bool, unit: str = "image", noise: float = 5.0) -> tuple[Tensor, Exact]:
    budget = Budget(5.0, 1e-5, unit=unit)
    ledger = Ledger(None, budget)
    run = ledger.start_run(method="test", variant="v", seeded=True)
    plan = Plan.calibrated([SubsampledGaussian("moments", (Block("moments", noise, fixed=True),))], budget)
    tape = Exact()
    curator = Curator(private, plan, ledger, run=run, randomness=Randomness(1), tape=tape)

    def features(images: Tensor, labels: Tensor, random: Any) -> Tensor:
        rows = images.flatten(1)[:, :6] - 0.4
        return torch.where(images[:, 0, :1, 0] == 0, math.nan, rows)

    answer = curator.noisy_second_moments("moments", features, clip_norm=CLIP, by_class=by_class)
    assert len(ledger.events()) == 1
    return answer, tape


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("persons", [False, True])
def test_removing_a_unit_moves_the_sum_by_its_own_products_and_no_more_than_is_paid(
    persons: bool, by_class: bool
) -> None:
    private = collection(persons)
    unit = "person" if persons else "image"
    answer, tape = asked(private, by_class=by_class, unit=unit)
    whole, largest = tape.sum.total, 0.0
    assert tape.sum.clip_norm == CLIP**2
    assert tape.public["shape"] == answer.shape == ((3, 6, 6) if by_class else (6, 6))
    for removed in range(0, 43 if persons else 300, 9):
        _, without = asked(private._without(removed, unit), by_class=by_class, unit=unit)
        moved = symmetric((whole - without.sum.total).view(3 if by_class else 1, -1), 6)
        norm = float(moved.norm())
        assert norm <= CLIP**2
        largest = max(largest, norm)
        # A sum of outer products of at most 7 images; of one image, a matrix of rank one.
        values = torch.linalg.eigvalsh(moved)
        assert values.min() > -1e-6 and (persons or values[..., :-1].max() < 1e-6)
    assert largest > (0.4 if persons else 0.999) * CLIP**2


def test_the_sum_is_exact_whatever_the_order_and_the_parts() -> None:
    torch.manual_seed(0)
    rows, labels = torch.randn(1000, 5), torch.arange(1000) % 3
    keys = torch.arange(1000)

    def total(order: Tensor) -> Tensor:
        batch = Batch(rows[order], labels[order], Draws((1, 2), keys, keys * 0), torch.ones(len(order), 1))
        return clipped_moment_sum(rows[order], batch, CLIP, 3)

    whole = total(keys)
    assert torch.equal(whole, total(keys.flip(0)))
    assert torch.equal(whole, sum(total(part) for part in keys.split(137)))
    clipped = rows.double() * (CLIP / rows.double().norm(dim=1, keepdim=True)).clamp(max=1)
    for label in range(3):
        expected = clipped[labels == label].T @ clipped[labels == label]
        found = symmetric(half_vector(whole[label].double() * moment_spacing(CLIP), 5), 5)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_the_noise_is_symmetric_and_as_large_as_planned() -> None:
    draws = []
    private = collection(False)
    for noise in (2000.0, 3000.0):
        answer, tape = asked(private, by_class=True, noise=noise)
        exact = symmetric(tape.sum.total.view(3, -1), 6)
        assert torch.equal(answer, answer.transpose(1, 2))
        draws.append((answer.double() - exact) / CLIP**2)
        assert tape.sum.standard_deviation == pytest.approx(noise * CLIP**2)
    # The same key draws the same noise: only its size differs, and off the diagonal it is √2 smaller.
    torch.testing.assert_close(draws[0] * 1.5, draws[1], rtol=1e-3, atol=10.0)
    upper = torch.triu_indices(6, 6)
    vector = half_vector(draws[0][:, upper[0], upper[1]], 6) / 2000.0
    assert 0.5 < float(vector.square().mean()) < 2  # 63 numbers, by a fixed key


def test_a_pass_of_too_many_units_is_refused() -> None:
    rows = torch.zeros(2049, 2)
    keys = torch.arange(2049)
    batch = Batch(rows, keys * 0, Draws((1, 2), keys, keys * 0), torch.ones(2049, 1))
    with pytest.raises(ValueError, match="at most 2048 units"):
        clipped_moment_sum(rows, batch, 1.0, None)
