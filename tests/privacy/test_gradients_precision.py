"""The clip holds for the vector that is summed: hostile activations, each arithmetic, numbers that are not finite."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import plain_loop
from gradient_cases import Classifier, apart, make_batch, squared_error, vector
from sfumato.privacy.gradients import Batch, clipped_sum, layers
from sfumato.privacy.gradients.performance import roundoff, without_tf32
from sfumato.privacy.randomness import Draws
from sfumato.privacy.sums import GhostClipping, PerExample, outer_products


def alone(batch: Batch, unit: int) -> Batch:
    """The batch with every other unit at weight 0: the sum is then this unit's vector, by the many units' way."""
    weights = torch.zeros_like(batch.weights)
    weights[unit] = batch.weights[unit]
    return replace(batch, weights=weights)


class Positions(nn.Module):
    """A linear layer over positions whose gradients cancel, and a convolution: the worst case for a Gram matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 5, bias=False)
        self.convolution = nn.Conv2d(2, 4, 3, padding=1, bias=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(images.flatten(1).view(len(images), -1, 12)), self.convolution(images)


def cancelling(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    """Linear in the outputs, with coefficients that sum to zero over positions."""
    positions, maps = model(images)
    first = random.normal("first", *positions.shape[1:]).to(positions.dtype)
    second = random.normal("second", *maps.shape[1:]).to(maps.dtype)
    first, second = first - first.mean(1, keepdim=True), second - second.mean((2, 3), keepdim=True)
    return (first * positions).sum((1, 2)) + (second * maps).sum((1, 2, 3))


def norm_of(sums: dict[str, Tensor]) -> float:
    return float(torch.linalg.vector_norm(vector(sums)))


def exact_norm(model: nn.Module, loss: object, batch: Batch, unit: int) -> float:
    gradient = plain_loop.unit_gradient(model, loss, batch.take(unit, unit + 1))
    return float(torch.linalg.vector_norm(vector(gradient)))


@pytest.mark.parametrize("ghost", [False, True])
def test_mean_far_above_spread_does_not_break_the_clip(ghost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "prefers_ghost", lambda **shape: ghost)
    torch.manual_seed(0)
    model = Positions()
    plain = make_batch(6, shape=(2, 6, 6), dtype=torch.float32)
    for mean, unit in product((0.0, 1.0, 1e3, 1e5), range(3)):
        batch = replace(plain, images=plain.images + mean)
        norm = float(torch.linalg.vector_norm(vector(clipped_sum(model, cancelling, alone(batch, unit), 0.1))))
        assert norm <= 0.1
        # Ghost clipping also bounds the terms before they cancel.
        assert norm >= 0.1 * ((0.5 if mean > 1.0 else 0.999) if ghost else (0.999 if mean <= 1e3 else 0.9))


def test_a_float32_gram_matrix_would_have_broken_it() -> None:
    """The trap is real: the same formula in float32 is short by more than the margin."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(1, 12, 64, generator=generator) + 1e3
    b = torch.randn(1, 5, 64, generator=generator)
    b = b - b.mean(2, keepdim=True)
    gram = ((a.transpose(1, 2) @ a) * (b.transpose(1, 2) @ b)).sum().abs().sqrt()
    exact = torch.linalg.vector_norm(b.double() @ a.double().transpose(1, 2))
    assert abs(float(gram / exact) - 1) > 1e-3


@pytest.mark.parametrize("ghost", [False, True])
def test_norms_are_right_where_float32_gram_matrices_are_not(ghost: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 64, 12, generator=generator) + 1e3
    gradient = torch.randn(4, 64, 5, generator=generator)
    gradient = gradient - gradient.mean(1, keepdim=True)
    exact = torch.linalg.vector_norm(gradient.double().transpose(1, 2) @ x.double(), dim=(1, 2))
    if ghost:
        assert torch.allclose(GhostClipping(x, gradient).norms()[0], exact, rtol=1e-9)
    else:
        # Not the exact gradient's norm, but that of the float32 numbers that are added.
        formed = outer_products(x, gradient)
        assert torch.allclose(PerExample(formed).norms()[0], formed.double().norm(dim=1), rtol=1e-12)


def test_squares_lost_to_underflow_do_not_break_the_clip() -> None:
    model, batch = nn.Linear(12, 5, bias=False), make_batch(5, shape=(12,), dtype=torch.float32)
    batch = replace(batch, images=batch.images * 1e-25)

    def steep(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return 1e30 * m(x).sum(1)

    assert exact_norm(model, steep, batch, 1) > 1e4
    assert float(torch.linalg.vector_norm(vector(clipped_sum(model, steep, alone(batch, 1), 0.1)))) <= 0.1


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from([1e-44, 1e-38, 1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e18, 1e25, 1e30]),
    st.sampled_from([1e-30, 1e-10, 1.0, 1e6]),
    st.floats(0.01, 10.0),
)
def test_the_bound_holds_over_the_whole_range_of_float32(scale: float, slope: float, clip: float) -> None:
    torch.manual_seed(0)
    model = Positions()
    batch = make_batch(5, shape=(2, 6, 6), dtype=torch.float32)
    batch = replace(batch, images=batch.images * scale)

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return slope * cancelling(m, x, y, r)

    one = alone(batch, 1)
    sums, expected = clipped_sum(model, loss, one, clip), plain_loop.clipped_sum(model, loss, one, clip)
    assert torch.isfinite(vector(sums)).all()
    assert float(torch.linalg.vector_norm(vector(sums))) <= clip
    # Ghost clipping rounds the factors of 6 positions and 5 outputs by at most 6 · √5 / 2 · 2^22 grid steps of 2^-44.
    assert float(torch.linalg.vector_norm(vector(sums) - vector(expected))) < 1e-4 * norm_of(expected) + 2e-6 * clip


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 3e38])
def test_a_gradient_that_is_not_finite_counts_as_zero_in_all_groups(poison: float) -> None:
    torch.manual_seed(0)
    model = Classifier()
    batch = make_batch(6, 2, dtype=torch.float32)
    good = torch.tensor([0, 1, 3, 4, 5])
    clip = {"convolution": 0.1, "embedding": 0.1, "scale": 0.1, "linear": 0.1}

    def loss(m: Classifier, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        # Poison reaches the embedding's gradient only; the others stay finite.
        return squared_error(m, x.clamp(max=1.0).nan_to_num(0.5), y, r) + m.embedding(y).sum(1) * x[:, 0, 0, 0] * 10.0

    images = batch.images.clone()
    images[5, 0, 0, 0] = poison
    poisoned = replace(batch, images=images, weights=torch.full_like(batch.weights, 0.5))
    sums = clipped_sum(model, loss, poisoned, clip)
    assert torch.isfinite(vector(sums)).all()
    assert apart(sums, plain_loop.clipped_sum(model, loss, poisoned.select(good), clip)) < 1e-5


def test_a_batch_of_nothing_finite_gives_zeros() -> None:
    batch = make_batch(5, dtype=torch.float32)
    batch = replace(batch, images=torch.full_like(batch.images, float("nan")))
    assert not vector(clipped_sum(Classifier(), squared_error, batch, 1.0)).any()


@pytest.mark.parametrize("ghost", [False, True])
def test_bfloat16_autocast_keeps_the_bound(ghost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "prefers_ghost", lambda **shape: ghost)
    torch.manual_seed(0)
    model = Positions()
    plain = make_batch(6, shape=(2, 6, 6), dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for mean, unit in product((0.0, 30.0), range(3)):
            batch = replace(plain, images=plain.images + mean)
            norm = float(torch.linalg.vector_norm(vector(clipped_sum(model, cancelling, alone(batch, unit), 0.1))))
            assert norm <= 0.1
            assert norm >= 0.1 * (0.9 if mean == 0.0 else 0.3)


def test_the_coarsest_arithmetic_in_use_sets_the_tolerance() -> None:
    cpu = torch.device("cpu")
    assert roundoff([torch.float64], cpu) == 2.0**-50
    assert roundoff([torch.float64, torch.float32], cpu) == 2.0**-23
    assert roundoff([torch.float32, torch.bfloat16], cpu) == 2.0**-7


def test_the_first_units_need_not_be_the_ones_with_a_gradient() -> None:
    """The traced shapes are not confirmed when the units compared with the loop have no finite gradient."""
    torch.manual_seed(0)
    model, batch = Classifier(), make_batch(9, dtype=torch.float32)
    images = batch.images.clone()
    images[:4] = float("nan")
    sums = clipped_sum(model, squared_error, replace(batch, images=images), 0.3)
    expected = plain_loop.clipped_sum(model, squared_error, batch.take(4, 9), 0.3)
    assert apart(sums, expected) < 1e-5


@pytest.mark.parametrize("switches", ["old", "new"])
def test_checks_run_without_tf32_and_leave_the_switches_as_they_were(switches: str) -> None:
    """torch has two sets of switches since version 2.9; the old ones cannot be read after the new ones were used."""
    cudnn, matmul, gpu = torch.backends.cudnn, torch.backends.cuda.matmul, torch.device("cuda")
    before = torch.get_float32_matmul_precision(), cudnn.conv.fp32_precision
    try:
        if switches == "old":
            torch.set_float32_matmul_precision("high")
        else:
            cudnn.conv.fp32_precision, matmul.fp32_precision = "ieee", "tf32"
        chosen = cudnn.conv.fp32_precision, matmul.fp32_precision
        assert roundoff([torch.float32], gpu) == 2.0**-9
        with without_tf32():
            assert roundoff([torch.float32], gpu) == 2.0**-23
            assert (cudnn.conv.fp32_precision, matmul.fp32_precision) == ("ieee", "ieee")
        assert (cudnn.conv.fp32_precision, matmul.fp32_precision) == chosen
    finally:
        cudnn.conv.fp32_precision = before[1]
        torch.set_float32_matmul_precision(before[0])
