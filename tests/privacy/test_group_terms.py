"""Losses that look at several records: what is summed, how far one unit moves it, what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import plain_loop
from sfumato.privacy import Randomness
from sfumato.privacy.gradients import Batch, UnsupportedModel
from sfumato.privacy.gradients.terms import Coupled, Grouped, group_gradient, shifted_sum
from sfumato.privacy.randomness import Draws


def batch_of(images: Tensor, *, rows_per_unit: int = 1, ids: Tensor | None = None, seed: int = 0) -> Batch:
    rows = torch.arange(len(images)) if ids is None else ids
    random = Randomness(seed).draws(rows, torch.zeros_like(rows), "test")
    weights = torch.full((len(images) // rows_per_unit, rows_per_unit), 1.0 / rows_per_unit)
    return Batch(images, torch.zeros(len(images), dtype=torch.int64), random, weights)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, images: Tensor) -> Tensor:
        codes: Tensor = self.last(torch.tanh(self.first(images.flatten(1))))
        return codes


def own(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    return model(images).square().sum(1)


def spread(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    """A batch loss: how far the codes' mean and second moments are from a standard normal's."""
    codes = model(images)
    return codes.mean(0).square().sum() + (codes.T @ codes / len(codes) - torch.eye(3).to(codes)).square().sum()


def flat(parts: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in parts.values()])


def without(batch: Batch, unit: int) -> Batch:
    return batch.select(torch.tensor([i for i in range(batch.units) if i != unit]))


def by_hand(model: nn.Module, value: Tensor, clip: float) -> Tensor:
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))]).double()
    return gradient * min(1.0, clip / float(gradient.norm()))


def test_the_grouped_sum_is_the_formula() -> None:
    model, images = Net(), torch.randn(20, 1, 2, 2)
    terms = Grouped(own, spread, groups=4, clip_norms=(0.5, 0.3), batch=16.0)
    batch = batch_of(images)
    labels = terms.labels(batch)
    expected = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for image in images:
        expected += by_hand(model, own(model, image[None], labels, None)[0], 0.5) / 16
    for group in range(4):
        expected += by_hand(model, spread(model, images[labels == group], labels, None), 0.3) / 4
    assert torch.allclose(flat(terms.total(model, batch)), expected, atol=1e-5)
    assert terms.bound == 0.5 / 16 + 2 * 0.3 / 4


def test_a_groups_draws_are_its_rows_own() -> None:
    def noisy(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        value: Tensor = (model(images) * random.normal("code", 3)).sum() * random.uniform("scale", 1).sum()
        return value

    model, batch = Net().double(), batch_of(torch.randn(24, 1, 2, 2, dtype=torch.float64))
    terms = Grouped(None, noisy, groups=4, clip_norms=(0.0, 1e9), batch=1.0)
    labels = terms.labels(batch)
    members = [(labels == group).nonzero()[:, 0] for group in range(4)]
    expected = sum(flat(group_gradient(model, noisy, batch.select(rows))) for rows in members) / 4
    assert torch.allclose(flat(terms.total(model, batch)), expected)


def test_group_labels_are_uniform_and_a_units_own() -> None:
    terms = Grouped(None, spread, groups=4, clip_norms=(0.0, 1.0), batch=1.0)
    batch = batch_of(torch.zeros(4000, 1, 2, 2))
    labels = terms.labels(batch)
    assert all(abs(int((labels == group).sum()) - 1000) < 150 for group in range(4))
    assert torch.equal(terms.labels(without(batch, 7)), torch.cat([labels[:7], labels[8:]]))
    persons = batch_of(torch.zeros(4000, 1, 2, 2), rows_per_unit=4)
    assert torch.equal(terms.labels(persons), labels[::4])


def test_empty_groups_and_empty_batches_give_zero() -> None:
    model = Net()
    terms = Grouped(own, spread, groups=50, clip_norms=(1.0, 1.0), batch=1.0)
    assert float(flat(terms.total(model, batch_of(torch.zeros(0, 1, 2, 2)))).norm()) == 0.0
    one = Grouped(None, spread, groups=50, clip_norms=(0.0, 1e-3), batch=1.0).total(
        model, batch_of(torch.randn(1, 1, 2, 2))
    )
    assert float(flat(one).norm()) == pytest.approx(1e-3 / 50)


def test_a_parameter_that_a_group_loss_does_not_use_gets_zero() -> None:
    model, batch = Net(), batch_of(torch.randn(6, 1, 2, 2))
    used = flat(group_gradient(model, spread, batch))
    model.unused = nn.Linear(2, 2)
    found = group_gradient(model, spread, batch)
    assert not found["unused.weight"].any() and torch.equal(flat(found)[: len(used)], used)


def test_what_is_not_finite_counts_as_zero() -> None:
    model, images = Net(), torch.randn(6, 1, 2, 2)
    images[2] = math.nan
    healthy = torch.cat([images[:2], images[3:]])
    ids = torch.tensor([0, 1, 3, 4, 5])
    with_it, without_it = (
        group_gradient(model, spread, batch) for batch in (batch_of(images), batch_of(healthy, ids=ids))
    )
    assert torch.allclose(flat(with_it), flat(without_it))

    def infinite(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
        return spread(model, images, labels, random) * math.inf

    assert float(flat(group_gradient(model, infinite, batch_of(healthy))).norm()) == 0.0


def turning(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    """The largest record alone says which way the weights go."""
    return images.flatten(1).sum(1)[images.flatten(1).abs().sum(1).argmax()] * model.weight.sum()


def nothing(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    return images.flatten(1).sum(1) * model.weight.sum()


def contrary() -> Batch:
    """One record that outweighs all others and points the other way."""
    images = torch.full((6, 1, 2, 2), -1.0)
    images[3] = 9.0
    return batch_of(images)


def test_one_unit_can_reach_the_grouped_bound_and_not_pass_it() -> None:
    model, batch = nn.Linear(4, 1, bias=False), contrary()
    for groups in (1, 2):
        terms = Grouped(nothing, turning, groups=groups, clip_norms=(0.4, 0.3), batch=8.0)
        moved = [
            float((flat(terms.total(model, batch)) - flat(terms.total(model, without(batch, unit)))).norm())
            for unit in range(6)
        ]
        assert max(moved) <= terms.bound * (1 + 1e-6)
        assert moved[3] >= 0.999 * terms.bound


def test_one_unit_can_reach_the_coupled_bound_and_not_pass_it() -> None:
    model, batch = nn.Linear(4, 1, bias=False), contrary()

    def shared(model: nn.Module, *row: Tensor) -> Tensor:
        return 1e4 * turning(model, *row)

    terms = Coupled(nothing, shared, clip_norm=0.5, batch=6)
    whole = flat(terms.total(model, batch))
    moved = [float((whole - flat(terms.total(model, without(batch, unit)))).norm()) for unit in range(6)]
    assert terms.bound == pytest.approx(11 * 0.5 / 6)
    assert max(moved) <= terms.bound * (1 + 1e-6)
    assert moved[3] >= 0.999 * terms.bound


def test_a_batch_above_the_cap_counts_as_empty() -> None:
    model, batch = nn.Linear(4, 1, bias=False), contrary()
    terms = Coupled(nothing, turning, clip_norm=0.5, batch=5)
    assert float(flat(terms.total(model, batch)).norm()) == 0.0
    after = float(flat(terms.total(model, without(batch, 3))).norm())
    assert 0 < after <= terms.bound


def test_the_coupled_sum_is_the_formula() -> None:
    model, images = Net().double(), torch.randn(7, 1, 2, 2, dtype=torch.float64)
    batch = batch_of(images)
    expected = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for image in images:
        both = own(model, image[None], batch.labels, None)[0] + spread(model, images, batch.labels, None)
        expected += by_hand(model, both, 0.7) / 10
    assert torch.allclose(flat(Coupled(own, spread, clip_norm=0.7, batch=10).total(model, batch)), expected, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e4])
def test_a_shifted_sum_is_the_formula(scale: float) -> None:
    """Also where the shift all but cancels a gradient."""
    model, batch = Net(), batch_of(torch.randn(30, 1, 2, 2))
    shift = {name: -scale * value for name, value in group_gradient(model, spread, batch).items()}
    if scale == 1.0:
        shift = {name: -value for name, value in plain_loop.unit_gradient(model, own, batch.take(0, 1)).items()}
    found = shifted_sum(model, own, batch, 0.5, shift)
    expected = torch.zeros_like(flat(shift))
    for unit in range(1 if scale == 1.0 else 0, 30):
        vector = flat(plain_loop.unit_gradient(model, own, batch.take(unit, unit + 1))) + flat(shift)
        expected += vector * min(1.0, 0.5 / max(1e-30, float(vector.norm())))
    assert float((flat(found) - expected).norm()) < 1e-4 * 15


class Remembers:
    def __init__(self) -> None:
        self.seen = torch.zeros(3)

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
        codes = model(images)
        value = (codes.mean(0) - self.seen).square().sum()
        self.seen = codes.mean(0).detach()
        return value


def from_outside(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    return (model(images).mean(0) - torch.randn(3)).square().sum()


def per_row(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    return model(images).square().sum(1)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [(Remembers(), "keeps a"), (from_outside, "refused on"), (per_row, "single number")],
)
def test_group_losses_that_see_more_than_their_group_are_refused(loss, reason) -> None:  # type: ignore[no-untyped-def]
    batch = batch_of(torch.rand(6, 1, 2, 2))
    for terms in (
        Grouped(own, loss, groups=2, clip_norms=(1.0, 1.0), batch=4.0),
        Coupled(own, loss, clip_norm=1.0, batch=6),
    ):
        with pytest.raises(UnsupportedModel, match=reason):
            terms.check(Net(), batch)


def test_a_group_loss_neither_reads_nor_keeps_its_ids_and_draws() -> None:
    kept = []
    batch = batch_of(torch.rand(6, 1, 2, 2))

    def reads(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return model(images).square().sum() * int(random.rows[0])

    def keeps(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        kept.append(random.normal("kept", 2))
        return model(images).square().sum()

    for loss in (reads, keeps):
        with pytest.raises(UnsupportedModel):
            Grouped(own, loss, groups=2, clip_norms=(1.0, 1.0), batch=4.0).check(Net(), batch)


def test_a_sample_loss_that_reads_values_is_refused() -> None:
    def mixing(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
        return model(images).square().sum(1) * float(images.mean())

    with pytest.raises(UnsupportedModel, match="refused on random images"):
        Grouped(mixing, spread, groups=2, clip_norms=(1.0, 1.0), batch=4.0).check(
            Net(), batch_of(torch.rand(6, 1, 2, 2))
        )
    Grouped(own, spread, groups=2, clip_norms=(1.0, 1.0), batch=4.0).check(Net(), batch_of(torch.rand(6, 1, 2, 2)))
    Coupled(own, spread, clip_norm=1.0, batch=6).check(Net(), batch_of(torch.rand(6, 1, 2, 2)))


def test_a_network_that_mixes_rows_is_refused_for_a_group_loss_too() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(UnsupportedModel, match="GroupNorm"):
        Grouped(None, spread, groups=2, clip_norms=(0.0, 1.0), batch=4.0).check(model, batch_of(torch.rand(6, 1, 2, 2)))


def test_numbers_that_bound_nothing_are_refused() -> None:
    wrong = [(0, (1.0, 1.0), 4.0), (2, (0.0, 1.0), 4.0), (2, (1.0, -1.0), 4.0), (2, (1.0, 1.0), 0.0)]
    for groups, clips, size in wrong:
        with pytest.raises(ValueError, match=r"must be"):
            Grouped(own, spread, groups=groups, clip_norms=clips, batch=size)
    with pytest.raises(ValueError, match="whole number"):
        Coupled(own, spread, clip_norm=1.0, batch=2.5)  # type: ignore[arg-type]
