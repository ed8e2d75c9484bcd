"""Compiled microbatches: what decides that they are used is public, and they give the eager sums or are not used."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import plain_loop
from gradient_cases import apart, make_batch
from sfumato.privacy.gradients import Batch, GradientSum, PerClass, Performance, clipped_sum, engine
from sfumato.privacy.gradients.batch import Microbatch
from sfumato.privacy.gradients.compiled import CompiledMicrobatch, same_loss
from sfumato.privacy.randomness import Draws

COMPILED = Performance(compile=True)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 3))


def squares(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
    return (model(images) - random.normal("target", 3)).square().sum(1)


def weighted(model: nn.Module, images: Tensor, labels: Tensor, random: Draws, state: Tensor) -> Tensor:
    return squares(model, images, labels, random) * state[:, 0]


def sums(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    loss = squares if batch.state is None else weighted
    return clipped_sum(model, loss, batch, 0.3, microbatch_size=4, performance=COMPILED)


def was_compiled(model: nn.Module) -> bool:
    return any(known.compiled is not None for known in engine._known.get(model, {}).values())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.long
def test_a_compiled_microbatch_gives_the_eager_sum_and_the_same_bits_at_every_row() -> None:
    model, batch = network(), replace(make_batch(10, 2, dtype=torch.float32), state=torch.rand(20, 1))
    eager = sums(model, batch)
    assert not was_compiled(model)
    compiled = sums(model, batch)
    assert was_compiled(model) and apart(compiled, eager) < 1e-6
    order = torch.tensor([5, 9, 1, 0, 3, 2, 8, 7, 6, 4])
    assert same(sums(model, batch.select(order)), compiled)
    # Parameters are inputs of the compiled function, not constants.
    with torch.no_grad():
        model[1].weight.mul_(0.5)
    assert apart(sums(model, batch), plain_loop.clipped_sum(model, weighted, batch, 0.3)) < 1e-5


@pytest.mark.long
def test_units_are_compiled_whether_or_not_earlier_batches_had_units_of_their_width() -> None:
    """One person more in an earlier step must not change how the others of its width are rounded later."""
    wide, narrow = make_batch(6, 2, dtype=torch.float32), make_batch(6, 1, dtype=torch.float32)
    found = []
    for earlier in (wide, narrow, narrow.take(0, 0)):
        model = network()
        sums(model, earlier)
        found.append(sums(model, wide))
        assert was_compiled(model)
    assert same(found[0], found[1]) and same(found[0], found[2])


def test_only_what_comes_again_unchanged_is_compiled() -> None:
    model, counter = network(), [0.0]

    def counting(m: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squares(m, images, labels, random) * counter[0]

    def compiles(loss: engine.Loss = squares, clip: float = 0.3, performance: Performance = COMPILED) -> bool:
        return GradientSum(model, loss, clip, performance=performance).compiles

    assert [compiles(), compiles()] == [False, True]
    assert [compiles(clip=0.2), compiles(clip=0.2), compiles(clip=0.1)] == [False, True, False]
    assert [compiles(counting), compiles(counting)] == [False, True]
    counter[0] += 1.0
    assert not compiles(counting), "its number would be a constant of the graph"
    compiles()
    model.eval()
    assert not compiles()
    assert not any(compiles(performance=Performance()) for _ in range(2))
    classes = PerClass([network() for _ in range(2)])
    assert not any(GradientSum(classes, squares, 0.3, performance=COMPILED).compiles for _ in range(2))


class Losses:
    def first(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squares(model, images, labels, random)

    def second(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return 2 * squares(model, images, labels, random)


def test_a_compiled_function_serves_the_same_function_or_method_of_the_same_object_only() -> None:
    one, other = Losses(), Losses()
    assert same_loss(squares, squares) and same_loss(one.first, one.first)
    assert not any(same_loss(one.first, loss) for loss in (squares, one.second, other.first))
    assert not same_loss(squares, weighted)


def test_a_compiled_function_with_other_sums_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CompiledMicrobatch.__call__

    def doubled(self: CompiledMicrobatch, micro: Microbatch) -> dict[str, Tensor]:
        return {name: 2 * value for name, value in right(self, micro).items()}

    monkeypatch.setattr(CompiledMicrobatch, "__call__", doubled)
    model, batch = network(), make_batch(10, 2, dtype=torch.float32)
    eager = sums(model, batch)
    with pytest.warns(UserWarning, match="the sums differ from the eager ones on random images"):
        again = sums(model, batch)
    assert same(again, eager) and not was_compiled(model)
