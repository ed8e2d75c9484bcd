"""The engine against the plain loop: what it counts, how it falls back, and what it refuses."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import plain_loop
from gradient_cases import Classifier, apart, make_batch, squared_error, vector
from sfumato.privacy.gradients import (
    Batch,
    Performance,
    UnsupportedModel,
    clipped_sum,
    engine,
    layers,
)
from sfumato.privacy.gradients.batch import Microbatch
from sfumato.privacy.randomness import Draws


@pytest.fixture
def model() -> Classifier:
    torch.manual_seed(0)
    return Classifier().double()


def reason(model: nn.Module) -> str | None:
    """Why tracing was given up, if it was."""
    return next(iter(engine._known[model].values())).untraced


@pytest.mark.parametrize("units", [0, 1, 2, 4, 7])
def test_any_number_of_units_and_any_chunk_give_the_loops_sum(model: Classifier, units: int) -> None:
    batch, clip = make_batch(units, 2), {"convolution": 0.3, "embedding": 0.1, "scale": 0.2, "linear": 5.0}
    expected = plain_loop.clipped_sum(model, squared_error, batch, clip)
    for chunk in (None, 1, 3, 5):
        sums = clipped_sum(model, squared_error, batch, clip, microbatch_size=chunk)
        assert sums.keys() == expected.keys()
        assert all(value.dtype == torch.float64 for value in sums.values())
        assert apart(sums, expected) < 1e-9


def test_empty_batch_gives_zeros_also_for_transposed_convolutions() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(2, 1, 3), nn.Flatten())
    sums = clipped_sum(model, lambda m, x, y, r: m(x).sum(1), make_batch(0, dtype=torch.float32), 1.0)
    assert not vector(sums).any()


def test_frozen_parameters_are_neither_counted_nor_returned(model: Classifier) -> None:
    model.embedding.requires_grad_(False)
    batch = make_batch(5)
    sums = clipped_sum(model, squared_error, batch, 0.2)
    assert "embedding.weight" not in sums
    assert apart(sums, plain_loop.clipped_sum(model, squared_error, batch, 0.2)) < 1e-9


def test_a_layer_used_twice_gets_its_cross_terms() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 3)).double()

    def twice(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return m(torch.tanh(m(x))).square().sum(1)

    batch = make_batch(6, shape=(3,))
    assert apart(clipped_sum(model, twice, batch, 0.5), plain_loop.clipped_sum(model, twice, batch, 0.5)) < 1e-9
    assert reason(model) is None


def test_tied_embedding_and_linear_weight() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 4)
            self.out = nn.Linear(4, 3, bias=False)
            self.out.weight = self.table.weight

        def forward(self, labels: Tensor) -> Tensor:
            return self.out(self.table(labels))

    torch.manual_seed(0)
    model, batch = Tied().double(), make_batch(6)

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return m(y).square().sum(1)

    assert apart(clipped_sum(model, loss, batch, 0.5), plain_loop.clipped_sum(model, loss, batch, 0.5)) < 1e-9
    assert reason(model) is None


def test_the_padding_of_a_table_gets_no_gradient() -> None:
    torch.manual_seed(0)
    model, batch = nn.Embedding(5, 3, padding_idx=4).double(), make_batch(12, classes=5)
    assert (batch.labels == 4).any() and (batch.labels == 1).any()

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return (m(y) - 1.0).square().sum(1)

    sums = clipped_sum(model, loss, batch, 0.5)
    assert not sums["weight"][4].any()
    assert apart(sums, plain_loop.clipped_sum(model, loss, batch, 0.5)) < 1e-9
    assert reason(model) is None


def test_a_parameter_in_any_function_is_a_copy_for_each_row(model: Classifier) -> None:
    def loss(m: Classifier, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return squared_error(m, x, y, r) * m.scale.exp().sum() + m.linear.weight.square().sum()

    batch = make_batch(5, 2)
    assert apart(clipped_sum(model, loss, batch, 0.7), plain_loop.clipped_sum(model, loss, batch, 0.7)) < 1e-9
    assert reason(model) is None


def test_a_loss_that_differentiates_the_network_takes_the_slow_path_and_is_right() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def score_matching(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        def energy(row: Tensor) -> Tensor:
            return m(row[None]).sum()

        score = torch.func.vmap(torch.func.grad(energy))(x)
        return score.square().sum(1) + m(x)[:, 0]

    def by_graph(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        x = x.detach().requires_grad_()
        (score,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return score.square().sum(1)

    batch = make_batch(5, shape=(3,))
    expected = plain_loop.clipped_sum(model, score_matching, batch, 0.1)
    assert apart(clipped_sum(model, score_matching, batch, 0.1), expected) < 1e-9
    with pytest.raises(UnsupportedModel, match=r"torch\.func\.grad"):
        clipped_sum(model, by_graph, batch, 0.1)


def test_inner_gradients_without_a_graph_are_constants(model: Classifier) -> None:
    def refined(m: Classifier, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        step = torch.func.grad(lambda moved: squared_error(m, moved, y, r).sum())(x)
        return squared_error(m, x - 0.1 * step.detach(), y, r)

    batch = make_batch(5)
    assert apart(clipped_sum(model, refined, batch, 0.3), plain_loop.clipped_sum(model, refined, batch, 0.3)) < 1e-9
    assert reason(model) is not None


def test_a_batch_dimension_in_another_place_is_not_mistaken() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3).double()

    def sequence_first(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return torch.tanh(m(x.transpose(0, 1))).transpose(0, 1).square().sum((1, 2))

    # As many positions as rows: by shape alone the two could be confused.
    batch = make_batch(6, shape=(6, 3))
    expected = plain_loop.clipped_sum(model, sequence_first, batch, 0.5)
    assert apart(clipped_sum(model, sequence_first, batch, 0.5), expected) < 1e-9
    assert reason(model) is None


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(3))


def test_a_scale_of_something_without_the_batch_first_is_not_mistaken() -> None:
    def positions_first(m: Scaled, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return (m.scale * x.transpose(0, 1)).square().sum((0, 2))

    model, batch = Scaled().double(), make_batch(6, shape=(6, 3))
    expected = plain_loop.clipped_sum(model, positions_first, batch, 0.5)
    assert apart(clipped_sum(model, positions_first, batch, 0.5), expected) < 1e-9
    assert reason(model) is None


def test_in_place_changes_after_a_layer_are_noticed() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3).double()

    def changed(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        h = x * 1.0
        out = m(h)
        h += 1.0
        return (out * h).square().sum(1)

    batch = make_batch(6, shape=(3,))
    with pytest.raises(RuntimeError, match="inplace"):
        plain_loop.clipped_sum(model, changed, batch, 0.5)
    with pytest.raises((RuntimeError, UnsupportedModel)):
        clipped_sum(model, changed, batch, 0.5)


def test_a_use_behind_the_trackers_back_is_found_in_the_graph() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 3).double()

    def hidden(m: nn.Linear, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            behind = x @ m.weight
        return (m(x) + behind).square().sum(1)

    batch = make_batch(6, shape=(3,))
    assert apart(clipped_sum(model, hidden, batch, 0.5), plain_loop.clipped_sum(model, hidden, batch, 0.5)) < 1e-9
    assert "does not look" in str(reason(model))


def test_a_parameter_kept_from_before_is_refused(model: Classifier) -> None:
    kept = model.linear.weight

    def loss(m: Classifier, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return squared_error(m, x, y, r) + kept.square().sum()

    with pytest.raises(UnsupportedModel, match="another way"):
        clipped_sum(model, loss, make_batch(5), 1.0)


def test_recurrent_layers_are_refused() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, 4, batch_first=True).double()
    with pytest.raises(UnsupportedModel, match="one row"):
        clipped_sum(model, lambda m, x, y, r: m(x)[0].square().sum((1, 2)), make_batch(5, shape=(4, 3)), 0.1)


def test_global_randomness_is_refused(model: Classifier) -> None:
    def loss(m: Classifier, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return squared_error(m, x + torch.rand_like(x), y, r)

    with pytest.raises(UnsupportedModel, match="one row"):
        clipped_sum(model, loss, make_batch(5), 1.0)


def test_a_loss_of_the_wrong_shape_is_refused(model: Classifier) -> None:
    with pytest.raises(UnsupportedModel, match="one number for each row"):
        clipped_sum(model, lambda m, x, y, r: m(x, y), make_batch(5), 1.0)


@pytest.mark.parametrize("ghost", [False, True])
def test_ghost_clipping_and_whole_gradients_give_the_same_sum(ghost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, batch = Classifier(), make_batch(70, 2, dtype=torch.float32)
    monkeypatch.setattr(layers, "prefers_ghost", lambda **shape: ghost)
    expected = plain_loop.clipped_sum(model, squared_error, batch, 0.4)
    assert apart(clipped_sum(model, squared_error, batch, 0.4), expected) < 1e-5 + 1e-4 * ghost


def test_the_way_follows_from_public_shapes() -> None:
    shape = {"positions": 1, "inner": 784, "outer": 512, "dtype": torch.float32, "device": torch.device("cpu")}
    assert layers.prefers_ghost(**shape)
    assert layers.prefers_ghost(**{**shape, "device": torch.device("cuda")})
    assert not layers.prefers_ghost(**{**shape, "positions": 784})
    wide = {**shape, "positions": 16, "inner": 4096}  # the last convolution of a discriminator of 64×64 pixels
    assert layers.prefers_ghost(**wide)
    assert not layers.prefers_ghost(**{**wide, "dtype": torch.float64})
    # Rounding would take more than 1e-4 of the clip norm.
    assert not layers.prefers_ghost(**{**wide, "outer": 4096})
    assert not layers.prefers_ghost(**{**shape, "positions": 16, "device": torch.device("cuda")})
    assert layers.prefers_ghost(**{**shape, "inner": 2500, "outer": 2500})


def test_a_pass_leaves_no_memory_behind(model: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    records: list[weakref.ref[layers.Record]] = []

    class Watched(layers.Record):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            records.append(weakref.ref(self))

    monkeypatch.setattr(layers, "Record", Watched)
    gc.collect()
    gc.disable()
    try:
        clipped_sum(model, squared_error, make_batch(6), 0.4)
        assert records
        assert all(record() is None for record in records)
    finally:
        gc.enable()


def test_the_memory_setting_bounds_a_microbatch(model: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, sizes = make_batch(12), []
    run = engine.GradientSum._eager

    def noting(self: engine.GradientSum, micro: Microbatch, known: engine.Known) -> dict[str, Tensor]:
        sizes.append(micro.units)
        return run(self, micro, known)

    monkeypatch.setattr(engine.GradientSum, "_eager", noting)
    expected = plain_loop.clipped_sum(model, squared_error, batch, 1.0)
    for memory, most in ((1, 1), (1 << 16, 4), (1 << 30, 256)):
        sizes.clear()
        sums = clipped_sum(model, squared_error, batch, 1.0, performance=Performance(memory=memory))
        assert max(sizes) <= most
        assert apart(sums, expected) < 1e-9


def test_private_state_reaches_the_loss(model: Classifier) -> None:
    def loss(m: Classifier, x: Tensor, y: Tensor, r: Draws, state: Tensor) -> Tensor:
        return squared_error(m, x, y, r) * state[:, 0]

    plain = make_batch(6, 2)
    batch = Batch(plain.images, plain.labels, plain.random, plain.weights, torch.rand(12, 1, dtype=torch.float64))
    assert apart(clipped_sum(model, loss, batch, 0.4), plain_loop.clipped_sum(model, loss, batch, 0.4)) < 1e-9


def test_a_grouped_convolution_in_pieces_gives_the_loops_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, batch = nn.Conv2d(2, 3, 3, padding=1), make_batch(6, 2, dtype=torch.float32)
    monkeypatch.setattr(layers, "_CACHED", 2 * model.weight.numel())

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return functional.softplus(m(x)).sum((1, 2, 3))

    sums = clipped_sum(model, loss, batch, 0.4, microbatch_size=6)
    assert apart(sums, plain_loop.clipped_sum(model, loss, batch, 0.4)) < 1e-5
    assert reason(model) is None


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize("shape", [(2, 7, 3), (2, 3, 7)])
def test_convolutions_of_images_that_are_not_square_are_traced(
    kind: type[nn.Conv2d | nn.ConvTranspose2d], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model, batch = kind(2, 3, 3, stride=2, padding=1).double(), make_batch(5, shape=shape)

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return functional.softplus(m(x)).sum((1, 2, 3))

    assert apart(clipped_sum(model, loss, batch, 0.4), plain_loop.clipped_sum(model, loss, batch, 0.4)) < 1e-9
    assert reason(model) is None


def test_a_stride_of_one_number_in_a_tuple_is_traced() -> None:
    torch.manual_seed(0)
    model, batch = nn.Conv2d(2, 3, 3).double(), make_batch(5)

    def loss(m: nn.Conv2d, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return functional.softplus(functional.conv2d(x, m.weight, m.bias, (2,), (1,))).sum((1, 2, 3))

    assert apart(clipped_sum(model, loss, batch, 0.4), plain_loop.clipped_sum(model, loss, batch, 0.4)) < 1e-9
    assert reason(model) is None


def test_padding_by_name_falls_back() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding="same").double()

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return functional.softplus(m(x)).sum((1, 2, 3))

    batch = make_batch(5)
    assert apart(clipped_sum(model, loss, batch, 0.4), plain_loop.clipped_sum(model, loss, batch, 0.4)) < 1e-9
