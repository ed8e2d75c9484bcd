"""Shards: dealt by key, asked by their own coins, clipped as one, accounted under replacement."""

from __future__ import annotations

import gc
import json
import math
import weakref
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.data import PrivateImages
from sfumato.methods.dp2_vae import DP2VAE
from sfumato.privacy import Block, Budget, Curator, Ledger, Plan, PrivateState, Randomness, SubsampledGaussian
from sfumato.privacy import records as states
from sfumato.privacy.accounting import epsilon, relation
from sfumato.privacy.events import event_from_json
from sfumato.privacy.gradients import UnsupportedModel
from sfumato.privacy.mechanism import Query
from sfumato.privacy.sampling import Partition, Units
from sfumato.release.plain_numbers import best_guess, most_recognised
from worst_case import worst_case_images

SHARDS = 5
TRAIN = SubsampledGaussian("train", (Block("gradient"),), sampling_rate=0.7, steps=6, shards=SHARDS)


class Listener:
    def __init__(self) -> None:
        self.heard: list[Query] = []

    def exchange(self, question: Query, answer: Tensor, *, charges: int) -> Tensor:
        self.heard.append(question)
        return answer


def collection(persons: bool = False) -> PrivateImages:
    pixels = np.random.default_rng(3).integers(0, 256, (24, 1, 4, 4), dtype=np.uint8)
    return PrivateImages(pixels, np.arange(24) % 2, classes=("a", "b"), persons=np.arange(24) // 3 if persons else None)


def door(private: PrivateImages, event: SubsampledGaussian = TRAIN, *, unit: str = "image") -> tuple[Curator, Listener]:
    budget, tape = Budget(5.0, 1e-5, unit=unit), Listener()  # type: ignore[arg-type]
    ledger = Ledger(None, budget)
    run = ledger.start_run(method="test", variant="v", seeded=True)
    plan = Plan.calibrated((event,), budget)
    return Curator(private, plan, ledger, run=run, randomness=Randomness(1), tape=tape), tape


def event(noise: float, *, rate: float = 1.0, steps: int = 1, shards: int | None = None) -> SubsampledGaussian:
    return SubsampledGaussian("event", (Block("sum", noise),), sampling_rate=rate, steps=steps, shards=shards)


def test_an_event_comes_back_and_old_ledgers_are_read() -> None:
    assert event_from_json(json.loads(json.dumps(TRAIN.to_json()))) == TRAIN
    old = {key: value for key, value in event(2.0).to_json().items() if key != "shards"}
    assert event_from_json(old) == event(2.0)
    with pytest.raises(ValueError, match="at least one shard"):
        event(1.0, shards=0)


def test_a_vector_that_turns_around_moves_twice_as_far() -> None:
    turned, near = [event(4.0, shards=10)], [event(2.0)]
    assert epsilon(turned, 1e-5) == pytest.approx(epsilon(near, 1e-5), rel=1e-3)
    assert best_guess(turned) == pytest.approx(best_guess(near), rel=1e-3)
    assert most_recognised(turned, 0.01) == pytest.approx(most_recognised(near, 0.01), rel=1e-2)


def test_known_costs() -> None:
    for noise, expected in ((1.72, 10.0), (12.9, 1.0)):
        assert epsilon([event(noise, rate=0.1, steps=300, shards=100)], 1e-5) == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("noise", [0.5, 1.7, 13.0])
def test_half_the_noise_bounds_renyis_divergence_of_turning_around(noise: float) -> None:
    """(1 − q) N(0) + q N(+1) and (1 − q) N(0) + q N(−1) are no further apart than (1 − q) N(0) + q N(2) and N(0)."""

    def log_density(values: np.ndarray, mean: float, rate: float) -> np.ndarray:
        gaussian = [-np.square(values - place) / (2 * noise**2) for place in (0.0, mean)]
        return np.logaddexp(np.log1p(-rate) + gaussian[0], np.log(rate) + gaussian[1])

    def divergence(first: float, second: float, rate: float, order: float) -> float:
        far = 30 * noise + 6 * order
        values = np.linspace(-far, far, 100_001)
        exponent = order * log_density(values, first, rate) + (1 - order) * log_density(values, second, rate)
        # Both densities lack the same factor, which the width of a cell and this one make up for.
        width = (values[1] - values[0]) / (noise * np.sqrt(2 * np.pi))
        return float(np.logaddexp.reduce(exponent) + np.log(width)) / (order - 1)

    for rate, order in product((0.001, 0.1, 0.6, 0.99), (1.01, 1.5, 2.0, 8.0, 64.0)):
        assert divergence(1.0, -1.0, rate, order) <= divergence(2.0, 0.0, rate, order) * (1 + 1e-6)


def test_a_ledger_with_shards_is_counted_whole_under_replacement() -> None:
    plain, shards = event(4.0), replace(event(1e4), name="shards", shards=10)
    assert epsilon([plain, shards], 1e-5) == pytest.approx(epsilon([event(2.0)], 1e-5), rel=1e-2)
    assert relation([plain]) == "add or remove one unit"
    assert relation([plain, shards]) == "add, remove or replace one unit"


def test_huge_costs_are_answered_too() -> None:
    """Nothing proved is left to compute with up there."""
    assert epsilon([event(0.02, rate=0.5, steps=100, shards=3)], 1e-5) == math.inf


def test_a_units_shard_is_its_own_affair() -> None:
    private, randomness = collection(), Randomness(1)
    dealt = Units(private, "image", max_images=4).shard_of(randomness, SHARDS)
    assert set(dealt) == set(range(SHARDS))
    private._masked = frozenset({3})
    without = Units(private, "image", max_images=4).shard_of(randomness, SHARDS)
    assert without[3] == -1 and np.array_equal(np.delete(without, 3), np.delete(dealt, 3))
    assert not np.array_equal(dealt, Units(collection(), "image", max_images=4).shard_of(Randomness(2), SHARDS))


def test_packs_hold_everyone_once_and_fill_up_with_their_own() -> None:
    dealt = np.array([0, 2, 2, -1, 4, 2, 0, 4, 2])
    seen = {}
    for shards, units, share in Partition(dealt, SHARDS, np.ones(9, int)).packs(np.arange(SHARDS), 5):
        assert units.size <= 5 or len(shards) == 1
        for shard, row, weight in zip(shards, units, share, strict=True):
            seen[int(shard)] = sorted(row[weight > 0].tolist())
            assert weight.sum() == pytest.approx(1.0) and (dealt[row] == shard).all()
    assert seen == {0: [0, 6], 2: [1, 2, 5, 8], 4: [4, 7]}
    (only,) = Partition(np.full(3, -1), SHARDS, np.ones(3, int)).packs(np.arange(SHARDS), 5)
    assert len(only[0]) == 0 and only[1].shape == (0, 1)


@pytest.mark.parametrize("persons", [False, True])
def test_a_shard_has_one_clipped_vector(persons: bool) -> None:
    private, unit = collection(persons), "person" if persons else "image"
    curator, tape = door(private, unit=unit)
    model = nn.Linear(16, 1, bias=False)

    def loss(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
        return 10 * model(images.flatten(1) - 0.5)[:, 0]

    batches = []
    for step in curator.steps("train"):
        batches.append(step._batch)
        step.noisy_gradient("gradient", model, loss, clip_norm=2.0)
    units = Units(private, unit, max_images=16)  # type: ignore[arg-type]
    dealt = units.shard_of(Randomness(1), SHARDS)
    owner = np.arange(24) // 3 if persons else np.arange(24)
    vectors = private._pixels.reshape(24, 16) / 255.0 - 0.5
    for question, batch in zip(tape.heard, batches, strict=True):
        total = np.zeros(16)
        for shard in batch:
            members = np.flatnonzero(dealt == shard)
            if len(members):
                mean = 10 * np.mean([vectors[owner == member].mean(0) for member in members], axis=0)
                total += mean * min(1.0, 2.0 / np.linalg.norm(mean))
        assert np.allclose(question.sums[0].total.numpy(), total, atol=1e-4)


@pytest.mark.parametrize("padded", [True, False])
def test_the_shape_in_which_a_shard_is_computed_is_its_own(padded: bool) -> None:
    """A person with many images is removed: the shards of all others meet the shapes, and so the kernels, they met."""
    pixels = np.zeros((40, 1, 4, 4), dtype=np.uint8)
    whole = PrivateImages(pixels, persons=np.concatenate([np.arange(32), np.full(8, 32)]))

    def rows(private: PrivateImages) -> dict[int, int]:
        curator, _ = door(private, replace(TRAIN, shards=16), unit="person")
        chosen = np.arange(16)
        options: dict[str, Any] = {"block": "gradient", "draws": 1, "state": None, "padded": padded}
        batches = list(curator._batches.fetch(curator.plan.events[0], 0, chosen, microbatch_size=16, **options))
        assert any(len(batch.owners) > 1 for batch in batches if batch.owners is not None)
        return {int(one): batch.rows_per_unit for batch in batches for one in batch.owners}  # type: ignore[union-attr]

    before, after = rows(whole), rows(whole._without(32, "person"))
    own = int(Units(whole, "person", max_images=16).shard_of(Randomness(1), 16)[32])
    assert before[own] >= 8
    assert {k: v for k, v in before.items() if k != own} == {k: v for k, v in after.items() if k != own}


def test_memory_is_the_shards_and_stays_between_visits() -> None:
    curator, _ = door(collection())
    memory = curator.private_state("visits", (1,), shards=SHARDS)
    expected = np.zeros(SHARDS)
    sizes = np.bincount(Units(collection(), "image", max_images=4).shard_of(Randomness(1), SHARDS), minlength=SHARDS)

    def count(images: Tensor, labels: Tensor, weights: Tensor, random: object, own: Tensor) -> Tensor:
        return own + (weights > 0).sum(1, keepdim=True)

    for step in curator.steps("train"):
        step.update(memory, count)
        expected[step._batch] += sizes[step._batch]
    assert np.allclose(memory._values[:, 0], expected)


def test_a_shard_is_given_to_another_function_the_first_time() -> None:
    curator, _ = door(collection())
    memory = curator.private_state("visits", (1,), shards=SHARDS)
    units = Units(collection(), "image", max_images=4).shard_of(Randomness(1), SHARDS)
    sizes, visits = np.bincount(units, minlength=SHARDS), np.zeros(SHARDS)

    def add(images: Tensor, labels: Tensor, weights: Tensor, random: object, own: Tensor, amount: float) -> Tensor:
        return own + amount

    for step in curator.steps("train"):
        step.update(memory, partial(add, amount=1.0), first=partial(add, amount=100.0))
        visits[step._batch] += 1
    assert (sizes > 0).any() and visits.max() > 1
    expected = np.where((visits > 0) & (sizes > 0), 99.0 + visits, visits)
    assert np.allclose(memory._values[:, 0], expected)


def test_a_memory_that_reads_values_or_changes_its_shape_is_refused() -> None:
    curator, _ = door(collection())
    memory = curator.private_state("means", (2,), shards=SHARDS)

    def mixed(images: Tensor, labels: Tensor, weights: Tensor, random: object, own: Tensor) -> Tensor:
        return own + float(images.mean())

    def wrong(images: Tensor, labels: Tensor, weights: Tensor, random: object, own: Tensor) -> Tensor:
        return own[:, :1]

    for step in curator.steps("train"):
        with pytest.raises(UnsupportedModel, match="refused on random images"):
            step.update(memory, mixed)
        break
    else:
        pytest.fail("the plan has no step")
    curator, _ = door(collection())
    for step in curator.steps("train"):
        with pytest.raises(UnsupportedModel, match="shape it had"):
            step.update(curator.private_state("means", (2,), shards=SHARDS), wrong)
        break
    else:
        pytest.fail("the plan has no step")


def test_memory_of_shards_and_of_records_are_not_confused() -> None:
    def row(images: Tensor, labels: Tensor, random: object, own: Tensor) -> Tensor:
        return own

    def shard(images: Tensor, labels: Tensor, weights: Tensor, random: object, own: Tensor) -> Tensor:
        return own

    curator, _ = door(collection())
    of_records = curator.private_state("records", (1,))
    for step in curator.steps("train"):
        with pytest.raises(ValueError, match="other owners"):
            step.update(of_records, shard)
        break
    else:
        pytest.fail("the plan has no step")
    curator, _ = door(collection(), replace(TRAIN, shards=None))
    of_shards = curator.private_state("shards", (1,), shards=SHARDS)
    for step in curator.steps("train"):
        with pytest.raises(ValueError, match="other owners"):
            step.update(of_shards, row)
        break
    else:
        pytest.fail("the plan has no step")


def test_memory_of_shards_is_not_kept_for_a_resumption() -> None:
    """The resumed run has another key and deals other shards; old memory would carry records into them."""
    curator, _ = door(collection())
    curator.private_state("shards", (1,), shards=SHARDS)
    records = curator.private_state("records", (1,))
    assert curator._states == [records]


def test_a_large_state_lies_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_IN_MEMORY", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    state = PrivateState("large", 1000, (2, 3), 0.5, torch.device("cpu"))
    rows = torch.tensor([7, 999, 0])
    state._write(rows, torch.arange(18.0).view(3, 2, 3))
    assert torch.equal(state._read(rows, torch.device("cpu")), torch.arange(18.0).view(3, 2, 3))
    assert (state._values[8] == 0.5).all()
    assert f"{tmp_path}/" in Path("/proc/self/maps").read_text()
    assert list(tmp_path.iterdir()) == []
    del state
    gc.collect()
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("variant", ["record", "shard"])
def test_private_state_dies_with_the_run(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[PrivateState]] = []
    build = Curator.private_state

    def watched(self: Curator, *arguments: object, **options: object) -> PrivateState:
        state = build(self, *arguments, **options)  # type: ignore[arg-type]
        made.append(weakref.ref(state))
        return state

    monkeypatch.setattr(Curator, "private_state", watched)
    release = DP2VAE.small(variant).fit(worst_case_images(), Budget(3.0, 1e-5))
    gc.collect()
    assert len(made) == 1 and made[0]() is None
    assert all("posterior" not in name and "encoder" not in name for name in release.model.state_dict())
