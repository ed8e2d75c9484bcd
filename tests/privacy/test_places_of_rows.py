"""Removing a record changes no other record's contribution by a single bit, whatever computes the contributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.privacy.accounting import Plan
from sfumato.privacy.budget import Budget, Unit
from sfumato.privacy.curator import Curator
from sfumato.privacy.events import Block, SubsampledGaussian
from sfumato.privacy.gradients import Batch, Performance, clipped_sum
from sfumato.privacy.gradients.batch import Compressed
from sfumato.privacy.gradients.engine import RowPasses
from sfumato.privacy.gradients.places import RowOrderWarning
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanism import Query
from sfumato.privacy.randomness import Draws, Randomness
from sfumato.privacy.records import PrivateRecords
from sfumato.privacy.sampling import Batches
from sfumato.privacy.step import Step
from sfumato.privacy.sums import clipped_feature_sum, grid_spacing

RECORDS = 150
REMOVED = ((0, RECORDS - 1), (70, 3), (1, 2))
LAST_ROUNDING = 1e-13  # of totals of at most 150 to float64


class LastSum:
    """A tape that keeps the exact sum of the last query."""

    def exchange(self, query: Query, answer: Tensor, /, *, charges: int) -> Tensor:
        self.total = query.sums[0].total.clone()
        return answer


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 5, 3), nn.SiLU(), nn.Conv2d(5, 3, 3), nn.Softplus(), nn.Flatten(), nn.Linear(27, 11))
    return nn.Sequential(*layers, nn.Sigmoid())


def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (RECORDS, 1, 7, 7)).astype(np.uint8)


def exact_sum(records: PrivateRecords, ask, unit: Unit = "image") -> Tensor:
    event, budget = SubsampledGaussian("sums", (Block("sum", 5.0),)), Budget(50, 1e-5, unit=unit)
    ledger, tape = Ledger(None, budget), LastSum()
    run = ledger.start_run(method="test", variant="", seeded=True)
    curator = Curator(records, Plan(budget, (event,)), ledger, run=run, randomness=Randomness(3), tape=tape)
    for step in curator.steps("sums"):
        ask(curator, step)
    return tape.total


def others_movement(total) -> float:
    """How far the other records' part of a sum moves when one record is removed: 0 in exact arithmetic.

    ``total`` gives the sum without the named records. Of S(D) − S(D−u) and S(D−v) − S(D−u−v) each is u's own vector.
    """
    pairs = [(total() - total(u)) - (total(v) - total(u, v)) for u, v in REMOVED]
    return max(float(pair.abs().max()) for pair in pairs)


def without(records: PrivateRecords, *units: int) -> PrivateRecords:
    for unit in units:
        records = records._without(unit, "image")
    return records


def test_a_feature_of_a_record_does_not_depend_on_its_place_in_a_pass() -> None:
    model, records = network(), PrivateRecords(images(), declared_size=33)

    def features(images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return model(images)

    def ask(curator: Curator, step: Step) -> None:
        step.noisy_sum("sum", features, clip_norm=1.0)

    assert others_movement(lambda *units: exact_sum(without(records, *units), ask)) <= LAST_ROUNDING


def test_the_state_of_a_record_does_not_depend_on_its_place_in_a_pass() -> None:
    model, records = network(), PrivateRecords(images(), declared_size=33)

    def update(images: Tensor, labels: Tensor, random: Draws, state: Tensor) -> Tensor:
        return model(images).detach()

    def remembered(images: Tensor, labels: Tensor, random: Draws, state: Tensor) -> Tensor:
        return state

    def ask(curator: Curator, step: Step) -> None:
        state = curator.private_state("memory", (11,))
        step.update(state, update)
        step.noisy_sum("sum", remembered, clip_norm=1.0, state=state)

    assert others_movement(lambda *units: exact_sum(without(records, *units), ask)) <= LAST_ROUNDING


def test_images_of_a_person_are_added_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """``scatter_add_`` and ``index_add_`` of floating-point numbers add in any order on a GPU."""
    for name in ("scatter_add_", "index_add_"):
        whole = getattr(Tensor, name)

        def checked(own: Tensor, *arguments: object, whole=whole) -> Tensor:
            assert not own.is_floating_point()
            return whole(own, *arguments)

        monkeypatch.setattr(Tensor, name, checked)
    torch.manual_seed(0)
    rows, values = torch.arange(30), torch.rand(30, 4)
    labels, weights = rows % 3, torch.full((6, 5), 0.2)
    weights[2, 3:] = 0.0
    batch = Batch(torch.rand(30, 1, 2, 2), labels, Draws((1, 2), rows, rows * 0), weights)
    found = clipped_feature_sum(values, batch, 100.0, classes=3).double() * grid_spacing(100.0)
    weighted = values.double() * weights.flatten()[:, None]
    for label in range(3):
        torch.testing.assert_close(found[label], weighted[labels == label].sum(0), rtol=1e-7, atol=0.0)


def test_a_gradient_by_torch_func_does_not_depend_on_its_place_in_a_microbatch() -> None:
    model, pixels = network(), torch.from_numpy(images()).float() / 255
    memory = 37 * 16 * sum(p.numel() for p in model.parameters())  # room for 37 gradients

    def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return model(images).square().sum(1) ** 1.3

    def total(*units: int) -> Tensor:
        rows = torch.tensor([row for row in range(RECORDS) if row not in units])
        batch = Batch(pixels[rows], rows * 0, Draws((1, 2), rows, rows * 0), torch.ones(len(rows), 1))
        sums = clipped_sum(model, loss, batch, Compressed(1.0, 0.9), performance=Performance(memory=memory))
        return torch.cat([value.flatten() for value in sums.values()])

    assert others_movement(total) <= LAST_ROUNDING


def plain_sums(batch: Batch) -> Tensor:
    return batch.images.flatten(1).sum(1, keepdim=True)


def sums_by_place(batch: Batch) -> Tensor:
    """As from a kernel that rounds its first two rows otherwise than the rest."""
    place = torch.arange(len(batch.images))
    return plain_sums(batch) + torch.where(place < 2, 0.0, 2.0**-12)[:, None]


def twelve_rows() -> Batch:
    rows = torch.arange(12)
    return Batch(torch.rand(12, 1, 2, 2), rows * 0, Draws((1, 2), rows, rows * 0), torch.ones(12, 1))


def test_a_function_that_depends_on_the_place_is_called_in_smaller_pieces() -> None:
    batch, passes = twelve_rows(), RowPasses()
    with pytest.warns(RowOrderWarning, match="in pieces of 2 units"):
        passes("features", sums_by_place, batch, dry=True)
    # The first two rows of a piece are all of its rows.
    torch.testing.assert_close(passes("features", sums_by_place, batch), plain_sums(batch))


def test_another_function_under_the_same_name_is_tested_itself() -> None:
    """A method may go on to other features; that the first ones did not depend on the place says nothing of them."""
    batch, passes = twelve_rows(), RowPasses()
    torch.testing.assert_close(passes("features", plain_sums, batch, code=plain_sums), plain_sums(batch))
    with pytest.warns(RowOrderWarning, match="in pieces of 2 units"):
        found = passes("features", sums_by_place, batch, code=sums_by_place)
    torch.testing.assert_close(found, plain_sums(batch))


def test_a_function_never_sees_whether_a_batch_is_empty() -> None:
    """No rows at all are a shape that the probe does not show, and an exception would tell that nobody was drawn."""
    nobody = PrivateRecords(images()[:0], declared_size=33)

    def features(images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return images.view(len(images), -1)[:, :5]  # refused by torch where there are no rows

    def update(images: Tensor, labels: Tensor, random: Draws, state: Tensor) -> Tensor:
        return state + images.view(len(images), -1)[:, :5].max()[None, None] * 0

    def ask(curator: Curator, step: Step) -> None:
        step.update(curator.private_state("memory", (5,)), update)
        step.noisy_sum("sum", features, clip_norm=1.0)

    assert exact_sum(nobody, ask).tolist() == [0.0] * 5


@pytest.mark.long
@pytest.mark.parametrize(("unit", "most"), [("image", 32), ("person", 2)])
def test_the_memory_of_a_pass_is_bounded_where_vectors_are_long_and_persons_have_many(
    unit: Unit, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^24 numbers: 32 vectors of 2^19, or those of two persons with up to 16 images each."""
    records = PrivateRecords(images()[:6], persons=np.arange(6) // 2)
    found: list[int] = []
    units_in_a_pass = Batches.units_in_a_pass

    def watched(self: Batches, event: SubsampledGaussian, *, most: int) -> int:
        found.append(most)
        return units_in_a_pass(self, event, most=2)

    monkeypatch.setattr(Batches, "units_in_a_pass", watched)

    def features(images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return images.flatten(1)[:, :1].expand(-1, 1 << 19)

    def ask(curator: Curator, step: Step) -> None:
        step.noisy_sum("sum", features, clip_norm=1.0)

    exact_sum(records, ask, unit=unit)
    assert set(found) == {most}
