"""The guard refuses what could carry private values out of a loss, and leaves sound losses alone."""

from __future__ import annotations

import functools
import logging
import os
import random as python_random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradient_cases import Classifier, make_batch, squared_error
from sfumato.privacy.gradients import UnsupportedModel, check, check_rows
from sfumato.privacy.gradients.guard import Guard
from sfumato.privacy.gradients.probe import due
from sfumato.privacy.gradients.python_state import python_state
from sfumato.privacy.gradients.side_effects import no_side_effects
from sfumato.privacy.randomness import Draws

KEPT: list[Any] = []
OUTSIDE = torch.zeros(3)


def guarded(effect: Callable[[Tensor, Tensor, Draws], object]) -> None:
    """Run a loss with this effect once, under the guard."""
    batch = make_batch(8)

    def loss(images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        effect(images, labels, random)
        return images.flatten(1).sum(1)

    KEPT.clear()
    guard = Guard()
    with guard():
        guard.wrap(loss)(batch.images, batch.labels, batch.random)


REFUSED: dict[str, tuple[Callable[[Tensor, Tensor, Draws], object], str]] = {
    "item": (lambda x, y, r: x.sum().item(), "Python objects"),
    "float": (lambda x, y, r: float(x[0, 0, 0, 0]), "Python objects"),
    "if": (lambda x, y, r: 1 if (x > 0.5).any() else 0, "Python objects"),
    "tolist": (lambda x, y, r: y.tolist(), "Python objects"),
    "numpy": (lambda x, y, r: x.numpy(), "Python objects"),
    "np.asarray": (lambda x, y, r: np.asarray(y), "Python objects"),
    "range of a label": (lambda x, y, r: list(range(y[0])), "Python objects"),
    "text": (lambda x, y, r: f"{x.mean()}", "Python objects"),
    "equal": (lambda x, y, r: torch.equal(x, x + 1), "Python objects"),
    "a number of a derived tensor": (lambda x, y, r: float((x * 0 + 1).view(-1)[:1]), "Python objects"),
    "a number of a draw": (lambda x, y, r: float(r.uniform("u", 1)[0, 0]), "Python objects"),
    "nonzero": (lambda x, y, r: (x > 0.5).nonzero(), "shape"),
    "mask": (lambda x, y, r: x[y == 0], "shape"),
    "unique": (lambda x, y, r: torch.unique(y), "shape"),
    "one_hot of unknown width": (lambda x, y, r: nn.functional.one_hot(y), "Python number"),
    "write outside": (lambda x, y, r: OUTSIDE.add_(x.sum()), "existed before"),
    "copy outside": (lambda x, y, r: OUTSIDE.copy_(x.flatten()[:3]), "existed before"),
    "kept": (lambda x, y, r: KEPT.append(x.mean(0)), "still alive"),
    "kept argument": (lambda x, y, r: KEPT.append(x), "still alive"),
    "kept in a cycle": (lambda x, y, r: KEPT.append({"a": [x.sum()]}), "still alive"),
    "ids": (lambda x, y, r: r.rows % 2, "ids"),
    "key": (lambda x, y, r: r.key, "ids"),
    "torch generator": (lambda x, y, r: torch.rand(1), "global generator"),
    "reseeded": (lambda x, y, r: torch.manual_seed(0), "global generator"),
    "numpy generator": (lambda x, y, r: np.random.rand(), "global generator"),
    "python generator": (lambda x, y, r: python_random.random(), "global generator"),
    "print": (lambda x, y, r: print(len(x)), "terminal"),
    "log": (lambda x, y, r: logging.getLogger("mine").error("%d", len(x)), "log line|terminal"),
    "warning": (lambda x, y, r: warnings.warn(f"{len(x)}", stacklevel=1), "warning"),
    "environment": (lambda x, y, r: os.putenv("SFUMATO_TEST", str(len(x))), "environment"),
    "process": (lambda x, y, r: os.system("true"), "process"),
    "exception": (lambda x, y, r: {}[len(x)], "raised KeyError"),
}


def test_refused() -> None:
    for name, (effect, reason) in REFUSED.items():
        with pytest.raises(UnsupportedModel, match=reason):
            guarded(effect)
            pytest.fail(f"not refused: {name}")


def test_a_file_is_refused_and_not_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="writes a file"):
        guarded(lambda x, y, r: (tmp_path / "sizes").write_text(str(len(x))))
    assert not (tmp_path / "sizes").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_is_refused() -> None:
    def start(x: Tensor, y: Tensor, r: Draws) -> None:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

    with pytest.raises(UnsupportedModel, match="thread"):
        guarded(start)


ALLOWED: dict[str, Callable[[Tensor, Tensor, Draws], object]] = {
    "number of a constant": lambda x, y, r: float(OUTSIDE[0]) + float(torch.arange(3).sum()),
    "shape": lambda x, y, r: len(x) + x.shape[1],
    "local write": lambda x, y, r: torch.zeros_like(x).copy_(x).clamp_(0, 1),
    "one_hot of known width": lambda x, y, r: nn.functional.one_hot(y, 3),
    "draws": lambda x, y, r: r.normal("z", 2) + r.uniform("u", 2) + r.integers("i", 5, 2) + r.draw[:, None],
    "selected draws": lambda x, y, r: r[torch.arange(2)].normal("z", 2),
    "integer index": lambda x, y, r: x[torch.arange(len(x)).flip(0)],
    "where": lambda x, y, r: torch.where(x > 0.5, x, 0.0),
    "kept constant": lambda x, y, r: KEPT.append(torch.ones(3)),
    "own generator": lambda x, y, r: torch.rand(2, generator=torch.Generator().manual_seed(0)),
    "caught exception": lambda x, y, r: [1][0],
}


def test_allowed() -> None:
    for effect in ALLOWED.values():
        guarded(effect)


def test_nothing_is_restricted_outside(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    guard = Guard()
    with guard():
        print("public")
        (tmp_path / "public").write_text("public")
        assert float(torch.ones(3).sum()) == 3.0
    assert capsys.readouterr().out == "public\n"


def test_a_refusal_cannot_be_swallowed() -> None:
    def stubborn(x: Tensor, y: Tensor, r: Draws) -> None:
        try:
            KEPT.append(x.sum().item())
        except ValueError:
            KEPT.append(0.0)

    with pytest.raises(UnsupportedModel, match="Python objects"):
        guarded(stubborn)


def test_gradients_collected_by_a_hook_are_seen() -> None:
    collected: list[Tensor] = []

    def loss(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        rows = squared_error(m, x, y, r)
        if rows.requires_grad:
            rows.register_hook(collected.append)
        return rows

    with pytest.raises(UnsupportedModel, match="still alive"):
        check(Classifier().double(), loss, make_batch(8), 0.5)


def test_a_counter_is_seen_and_a_cache_filled_once_is_not() -> None:
    calls: list[int] = []
    table: dict[str, int] = {}

    def counting(x: Tensor, y: Tensor, r: Draws) -> Tensor:
        calls.append(1)
        return x.flatten(1)

    def cached(x: Tensor, y: Tensor, r: Draws) -> Tensor:
        table.setdefault("width", x.shape[-1])
        return x.flatten(1)

    with pytest.raises(UnsupportedModel, match="Python state"):
        check_rows(counting, make_batch(8))
    check_rows(cached, make_batch(8))


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


def test_several_sizes_are_tried() -> None:
    def late(m: nn.Module, x: Tensor, y: Tensor, r: Draws) -> Tensor:
        return squared_error(m, x - x.mean(0) if len(x) >= 64 else x, y, r)

    check(Classifier().double(), late, make_batch(40), 0.5)
    with pytest.raises(UnsupportedModel, match="moved another record's loss"):
        check(Classifier().double(), late, make_batch(70), 0.5)


def test_checks_are_repeated_at_public_steps() -> None:
    assert [step for step in range(300) if due(step, 300)] == [4, 16, 64, 256, 299]
    assert due(0, 1) and not due(0, 2)


def test_what_a_finaliser_warns_of_is_not_the_functions() -> None:
    """An unclosed file of anybody may be collected while a loss is being checked."""
    for category, refused in ((UserWarning, True), (ResourceWarning, False)):
        found: list[str] = []
        with no_side_effects(lambda: True, found.append):
            warnings.warn("unclosed file", category, stacklevel=1)
        assert found == ["it raises a warning"] * refused
