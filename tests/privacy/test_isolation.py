"""A function sees one row: what could carry a value out of it is refused, and sound functions run."""

from __future__ import annotations

import functools
import random as python_random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradient_cases import Classifier, make_batch, squared_error
from sfumato.privacy.gradients import UnsupportedModel, check, check_rows, clipped_sum, engine
from sfumato.privacy.gradients.one_row import each_row, python_state
from sfumato.privacy.randomness import Draws

KEPT: list[Any] = []
PLACE = [torch.zeros(())]
OUTSIDE = torch.zeros(3)
Effect = Callable[[Tensor, Tensor, Draws], object]


def run(effect: Effect) -> Tensor:
    """The rows' sums by a function with this effect, after a first call that may fill caches."""
    batch = make_batch(8)

    def features(images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        effect(images, labels, random)
        return images.flatten(1).sum(1)

    KEPT.clear()
    check_rows(features, batch)
    return each_row(features, batch)


class OwnRule(torch.autograd.Function):
    """Centres by the mean of all rows in its own vmap rule."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> tuple[Tensor, int]:
        return x - x.mean(0, keepdim=True), 0


REFUSED: dict[str, Effect] = {
    "item": lambda x, y, r: x.sum().item(),
    "float": lambda x, y, r: float(x[0, 0, 0, 0]),
    "if": lambda x, y, r: 1 if (x > 0.5).any() else 0,
    "tolist": lambda x, y, r: y.tolist(),
    "numpy": lambda x, y, r: x.numpy(),
    "np.asarray": lambda x, y, r: np.asarray(y),
    "range of a label": lambda x, y, r: list(range(y[0])),
    "text": lambda x, y, r: f"{x.mean()}",
    "repr": lambda x, y, r: repr(x),
    "equal": lambda x, y, r: torch.equal(x, x + 1),
    "allclose": lambda x, y, r: torch.allclose(x, x + 1),
    "membership": lambda x, y, r: 0.5 in x,
    "a number of a draw": lambda x, y, r: float(r.uniform("u", 1)[0, 0]),
    "an id": lambda x, y, r: int(r.rows[0]),
    "nonzero": lambda x, y, r: (x > 0.5).nonzero(),
    "mask": lambda x, y, r: x[x > 0.5],
    "unique": lambda x, y, r: torch.unique(y),
    "one_hot of unknown width": lambda x, y, r: nn.functional.one_hot(y),
    "write outside": lambda x, y, r: OUTSIDE.add_(x.sum()),
    "copy outside": lambda x, y, r: OUTSIDE.copy_(x.flatten()[:3]),
    "kept": lambda x, y, r: KEPT.append(x.mean(0)),
    "kept argument": lambda x, y, r: KEPT.append(x),
    "kept in the place of another": lambda x, y, r: PLACE.__setitem__(0, x.sum()),  # no size of a container changes
    "kept in a cycle": lambda x, y, r: KEPT.append({"a": [x.sum()]}),
    "hook": lambda x, y, r: (x * 1.0).requires_grad_().register_hook(KEPT.append),
    "own vmap rule": lambda x, y, r: OwnRule.apply(x),
    "torch generator": lambda x, y, r: torch.rand(1),
    "numpy generator": lambda x, y, r: np.random.rand(),
    "python generator": lambda x, y, r: python_random.random(),
    "exception": lambda x, y, r: {}[len(x)],
    "storage": lambda x, y, r: x.untyped_storage().tolist(),
    "dlpack": lambda x, y, r: np.from_dlpack(x),
}

ALLOWED: dict[str, Effect] = {
    "number of a constant": lambda x, y, r: float(OUTSIDE[0]) + float(torch.arange(3).sum()),
    "shape": lambda x, y, r: len(x) + x.shape[1],
    "local write": lambda x, y, r: torch.zeros_like(x).copy_(x).clamp_(0, 1),
    "one_hot of known width": lambda x, y, r: nn.functional.one_hot(y, 3),
    "draws": lambda x, y, r: r.normal("z", 2) + r.uniform("u", 2) + r.integers("i", 5, 2) + r.draw[:, None],
    "integer index": lambda x, y, r: x[torch.arange(len(x)).flip(0)],
    "where": lambda x, y, r: torch.where(x > 0.5, x, 0.0),
    "gradient": lambda x, y, r: torch.func.grad(lambda z: z.square().sum())(x),
    "caught exception": lambda x, y, r: [1][0],
}


def test_what_could_carry_a_value_out_is_refused() -> None:
    for name, effect in REFUSED.items():
        with pytest.raises(UnsupportedModel):
            run(effect)
            pytest.fail(f"not refused: {name}")


def test_sound_functions_run() -> None:
    expected = run(lambda x, y, r: None)
    for effect in ALLOWED.values():
        torch.testing.assert_close(run(effect), expected)


def test_a_refusal_that_is_swallowed_lets_nothing_out() -> None:
    def stubborn(x: Tensor, y: Tensor, r: Draws) -> None:
        try:
            KEPT.append(x.sum().item())
        except RuntimeError:
            KEPT.append(0.0)

    with pytest.raises(UnsupportedModel, match="Python state"):
        run(stubborn)
    assert set(KEPT) == {0.0}


def test_statistics_over_rows_are_those_of_one_row() -> None:
    """A mean, a rank or a count over the batch has one row to look at, in any size of batch and at every step."""

    def centred(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        rows = squared_error(m, x - 0.5 * x.mean(0, keepdim=True), y, r)
        return rows * (rows >= rows.median()).to(rows.dtype) / (y[:, None] == y[None]).sum(1) / len(x)

    torch.manual_seed(0)
    model, batch = Classifier().double(), make_batch(9)
    alone = [clipped_sum(model, centred, batch.take(i, i + 1), 0.5) for i in range(9)]
    for name, total in clipped_sum(model, centred, batch, 0.5).items():
        torch.testing.assert_close(total, sum(one[name] for one in alone), atol=1e-12, rtol=1e-9)


def test_a_counter_is_seen_and_a_cache_filled_once_is_not() -> None:
    calls: list[int] = []
    table: dict[str, int] = {}
    with pytest.raises(UnsupportedModel, match="Python state"):
        run(lambda x, y, r: calls.append(1))
    run(lambda x, y, r: table.setdefault("width", x.shape[-1]))


def test_a_generator_of_ones_own_is_seen() -> None:
    """Its draws would follow from the number of calls."""
    for generator in (np.random.default_rng(0), np.random.RandomState(0), python_random.Random(0)):
        with pytest.raises(UnsupportedModel, match="Python state"):
            run(lambda x, y, r, own=generator: own.random())  # type: ignore[misc]
    own = torch.Generator().manual_seed(0)
    with pytest.raises(UnsupportedModel):
        run(lambda x, y, r: torch.rand(2, generator=own))


def test_a_counter_that_begins_on_private_rows_is_refused_there() -> None:
    """As a loss would that behaves while it is tried on random images."""
    late, calls = [False], []

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        if late[0]:
            calls.append(1)
        return squared_error(m, x, y, r)

    model, batch = Classifier().double(), make_batch(8)
    check(model, loss, batch, 0.5)
    late[0] = True
    with pytest.raises(UnsupportedModel, match="Python state"):
        clipped_sum(model, loss, batch, 0.5)


def test_python_state_reaches_closures_defaults_objects_and_caches() -> None:
    class Counter:
        calls = 0

        def __call__(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x

    counter = Counter()
    functions = (counter, lambda x: counter(x), functools.partial(lambda c, x: c(x), counter))
    for function in functions:
        before = python_state(function)
        function(torch.ones(1))
        assert python_state(function) != before


def test_gradients_collected_by_a_hook_are_refused() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        rows = squared_error(m, x, y, r)
        rows.register_hook(KEPT.append)
        return rows

    with pytest.raises(UnsupportedModel, match="registers a hook"):
        check(Classifier().double(), loss, make_batch(8), 0.5)


def test_an_honest_loss_passes() -> None:
    for dtype in (torch.float32, torch.float64):
        for units in (0, 1, 2, 9):
            torch.manual_seed(0)
            check(Classifier().to(dtype), squared_error, make_batch(units, 2, dtype=dtype), 0.5)


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


def test_a_fast_sum_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*given: Any, **options: object) -> dict[str, Tensor]:
        return {name: 2.0 * value for name, value in clipped_sum(*given).items()}

    monkeypatch.setattr(engine, "clipped_sum", wrong)
    with pytest.raises(UnsupportedModel, match=r"disagrees with torch\.func\.grad"):
        check(Classifier().double(), squared_error, make_batch(8), 0.5)


def test_public_statistics_may_stay() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2).eval(), nn.Flatten()).double()
    check(model, lambda m, x, y, r: m(x).square().sum(1), make_batch(6), 0.5)


def test_a_batch_shows_no_pixel() -> None:
    batch = make_batch(8)
    assert "0.12" not in repr(replace(batch, images=batch.images * 0 + 0.123456789))
