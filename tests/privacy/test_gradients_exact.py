"""Exact sums: a unit's vector is its own, whatever stands beside it, and totals do not depend on order or packing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import plain_loop
from gradient_cases import Classifier, apart, make_batch, squared_error, vector
from sfumato.privacy.gradients import Batch, GradientSum, PerClass, Performance, clipped_sum, layers
from sfumato.privacy.gradients.batch import Microbatch, microbatch_size, microbatches
from sfumato.privacy.gradients.places import Places, RowOrderWarning
from sfumato.privacy.randomness import Draws
from sfumato.privacy.sums import (
    FRACTION_BITS,
    MOST_SPREAD,
    FixedPointSum,
    GhostClipping,
    PerExample,
    clip_factors,
    grid_spacing,
)

SIZE = 8


class Mixed(nn.Module):
    """Every kind of layer, with one position and with many."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 8, 3, padding=1)
        self.normal = nn.GroupNorm(2, 8)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)
        self.places = nn.Linear(6, 6)
        self.table = nn.Embedding(3, 16)
        self.scale = nn.Parameter(torch.ones(16))
        self.last = nn.Sequential(nn.Linear(144, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        h = functional.silu(self.normal(self.enter(images)))
        h = self.places(self.up(torch.tanh(self.down(h))))
        h = self.last[0](h.flatten(1)) * self.scale + self.table(labels)
        return self.last[2](self.last[1](h))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def sums(model: nn.Module, batch: Batch, size: int = SIZE) -> dict[str, Tensor]:
    return clipped_sum(model, squared_error, batch, 0.3, microbatch_size=size)


@pytest.fixture(params=["one model", "models for each class"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return Mixed() if request.param == "one model" else PerClass([Mixed() for _ in range(3)])


@pytest.mark.parametrize("ghost", [None, True, False])
def test_order_and_packing_do_not_change_a_bit(
    model: nn.Module, ghost: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ghost is not None:
        monkeypatch.setattr(layers, "prefers_ghost", lambda **shape: ghost)
    for rows, seed in ((1, 0), (3, 1)):
        batch = make_batch(21, rows, dtype=torch.float32)
        whole = sums(model, batch)
        order = torch.randperm(21, generator=torch.Generator().manual_seed(seed))
        assert same(whole, sums(model, batch.select(order)))
        total = GradientSum(model, squared_error, 0.3, microbatch_size=SIZE)
        for part in order.split([1, 7, 0, 9, 4]):
            total.add(batch.select(part))
        assert same(whole, total.values())
        assert apart(whole, plain_loop.clipped_sum(model, squared_error, batch, 0.3)) < (1e-4 if ghost else 1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_unit_adds_the_same_bits_at_every_row_and_beside_any_others(model: nn.Module, rows: int) -> None:
    batch = make_batch(40, rows, dtype=torch.float32)
    alone = sums(model, batch.take(0, 1))
    assert float(torch.linalg.vector_norm(vector(alone))) <= 0.3
    for row in range(SIZE):
        others = batch.take(1 + row, 1 + row + SIZE - 1)
        order = torch.tensor([*range(1, row + 1), 0, *range(row + 1, SIZE)])
        together = Batch(
            torch.cat([batch.images[:rows], others.images]),
            torch.cat([batch.labels[:rows], others.labels]),
            replace(
                batch.random,
                rows=torch.cat([batch.random.rows[:rows], others.random.rows]),
                draw=torch.cat([batch.random.draw[:rows], others.random.draw]),
            ),
            torch.cat([batch.weights[:1], others.weights]),
        ).select(order)
        moved, rest = sums(model, together), sums(model, others)
        assert same({name: moved[name] - rest[name] for name in moved}, alone)


def test_padding_never_changes_an_answer(model: nn.Module) -> None:
    batch = make_batch(11, 2, dtype=torch.float32)
    assert same(sums(model, batch), sums(model, batch.padded(40)))


def test_where_rows_are_rounded_differently_every_unit_is_alone_and_a_warning_says_so() -> None:
    micro = next(microbatches(Classifier(), make_batch(8, dtype=torch.float32), 8))

    def by_row(micro: Microbatch) -> dict[str, Tensor]:
        """As a kernel would that rounds the rows of one pass differently."""
        batch = micro.parts[0].batch
        weights = batch.weights.sum(1) * (1.0 + torch.arange(batch.units))
        return {"sum": (batch.images.flatten(1).sum(1) * weights * 1e6).round().sum(0, keepdim=True).to(torch.int64)}

    with pytest.warns(RowOrderWarning, match="in pieces of 1 units"):
        chosen = Places().choose(by_row, micro, key=("eager",), what="", eager=by_row)
    parts = [by_row(next(microbatches(Classifier(), micro.parts[0].batch.take(i, i + 1), 1))) for i in range(8)]
    assert same(chosen(micro), {"sum": torch.stack([part["sum"] for part in parts]).sum(0)})


@pytest.mark.parametrize("kind", ["identical", "opposite", "random"])
@pytest.mark.parametrize("ghost", [True, False])
def test_one_record_moves_the_sum_by_at_most_its_clip(kind: str, ghost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "prefers_ghost", lambda **shape: ghost)
    torch.manual_seed(0)
    model = Mixed()
    batch = make_batch(258, dtype=torch.float32)
    if kind != "random":
        ones = torch.ones_like(batch.labels)
        batch = replace(batch, images=batch.images[:1].expand_as(batch.images), labels=ones)
        batch = replace(batch, random=replace(batch.random, rows=0 * ones))

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws, sign: Tensor) -> Tensor:
        return squared_error(m, x, y, r) * sign[:, 0]

    sign = torch.ones(258, 1)
    if kind == "opposite":
        sign[::2] = -1.0
    batch = replace(batch, state=sign)
    for units in (1, 2, 7, 8, 31, 32, 33, 64, 255, 256, 257):
        more = clipped_sum(model, loss, batch.take(0, units + 1), 0.05, microbatch_size=32)
        less = clipped_sum(model, loss, batch.take(0, units), 0.05, microbatch_size=32)
        moved = vector(more) - vector(less)
        assert 0.04999 < float(torch.linalg.vector_norm(moved)) <= 0.05


def test_a_coarse_arithmetic_moves_no_further() -> None:
    torch.manual_seed(0)
    model, batch = Mixed(), make_batch(20, 2, dtype=torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        performance = Performance(dtype=dtype)
        for unit in range(4):
            one = clipped_sum(model, squared_error, batch.take(unit, unit + 1), 0.05, performance=performance)
            assert 0.0499 < float(torch.linalg.vector_norm(vector(one))) <= 0.05


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 40), st.floats(1e-4, 1e4), st.integers(0, 999))
def test_a_product_of_rounded_factors_stays_inside_its_bound(
    positions: int, inner: int, outer: int, clip_norm: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(1, positions, inner, generator=generator) * 10.0 ** (seed % 7 - 3)
    b = torch.randn(1, positions, outer, generator=generator)
    found = GhostClipping(a, b)
    norm, spread = found.norms()
    spacing = grid_spacing(clip_norm)
    slack = found.absolute * spacing
    factor = clip_factors(norm, clip_norm, slack=slack, spread=spread, rounding=found.relative * spread)
    vector = found.sums(factor, spacing).double() * spacing
    assert float(vector.norm()) <= clip_norm
    exact = float(factor) * found.gradients().double()
    assert float((vector - exact).norm()) <= found.relative * float(factor * spread) + found.absolute * spacing + 1e-6


def test_no_order_of_adding_the_terms_of_a_product_leaves_the_whole_numbers_of_float64() -> None:
    """One term is as large as the vector; several may be as large as the spread before they cancel."""
    for positions, spread in ((1, 1.0), (2, MOST_SPREAD)):
        found = GhostClipping(torch.ones(4, positions, 3), torch.ones(4, positions, 3))
        assert found._units * 2.0 ** (FRACTION_BITS + 1) * spread <= 2.0**53


def test_a_wrong_grid_would_be_noticed() -> None:
    """The test above can fail: rounding to a thousandth of the clip leaves the ball."""
    vector = torch.full((1, 10000), 0.0104, dtype=torch.float64)
    assert float(torch.round(vector / 0.001).mul(0.001).norm()) < float(vector.norm())
    assert float(torch.round(vector * 1.06 / 0.001).mul(0.001).norm()) > 1.0


def test_the_spacing_is_a_power_of_two_below_the_clip_norm() -> None:
    for clip_norm in (1e-6, 0.3, 1.0, 7.0, 1e5):
        spacing = grid_spacing(clip_norm)
        assert math.frexp(spacing)[0] == 0.5 and 2.0**44 <= clip_norm / spacing < 2.0**45
    for outside in (2.0**-60, 2.0**60):
        with pytest.raises(ValueError, match="between"):
            grid_spacing(outside)


def test_large_sums_are_carried_over() -> None:
    total = FixedPointSum({"w": 0.5})
    for _ in range(5):
        total.add({"w": torch.tensor([1 << 61])}, 1 << 16)
    limbs = total.limbs({"w": 1}, torch.device("cpu"))
    assert total.values(limbs, {"w": 1})["w"].tolist() == [5 * 2.0**60]


def test_more_units_than_64_bits_hold_are_added_without_rounding_in_any_number_of_processes() -> None:
    # 8 million units near the clip norm, half of them negative, and one grid step: float64 sums would lose the step.
    rng = np.random.default_rng(0)
    steps = [int(n) << 16 for n in rng.integers(2**43 >> 16, 2**45 >> 16, 64)]
    for processes in (1, 2, 3, 7):
        parts = [FixedPointSum({"w": 1.0}) for _ in range(processes)]
        for number, sign in enumerate([1, -1] * 32):
            parts[number % processes].add({"w": torch.tensor([sign * steps[number // 2] << 16])}, 1 << 16)
        parts[0].add({"w": torch.tensor([1])}, 1)
        limbs = torch.stack([part.limbs({"w": 1}, torch.device("cpu")) for part in parts]).sum(0)
        assert parts[0].values(limbs, {"w": 1})["w"].tolist() == [1.0]


def test_the_size_of_a_microbatch_follows_from_public_numbers() -> None:
    assert microbatch_size(600.0, most=1024) == 674
    assert microbatch_size(3000.0, most=512) == 453
    assert microbatch_size(0.01, most=512) == 1
    assert microbatch_size(20.0, most=512, multiple=32) == 64
    assert microbatch_size(20.0, most=32, multiple=32) == 32
    assert microbatch_size(100.0, most=0) == 1


def test_a_unit_with_factor_zero_adds_nothing_wherever_it_stands() -> None:
    for unit in (0, 255, 256, 259, 260, 511, 519):
        gradient, factor = torch.ones(520, 3), torch.ones(520, dtype=torch.float64)
        gradient[unit], factor[unit] = math.inf, 0.0
        found = PerExample(gradient).sums(factor, 0.5)
        assert found.tolist() == [2 * 519] * 3


def test_units_that_are_not_finite_add_nothing_in_any_microbatch() -> None:
    torch.manual_seed(0)
    model, batch = Classifier(), make_batch(9, dtype=torch.float32)
    images = batch.images.clone()
    images[4] = math.inf
    rest = batch.select(torch.tensor([0, 1, 2, 3, 5, 6, 7, 8]))
    assert same(sums(model, replace(batch, images=images)), sums(model, rest))
