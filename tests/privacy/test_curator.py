"""The door: what is asked is planned, paid, clipped and noised; what is not, is not answered."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from sfumato.data import PrivateImages
from sfumato.privacy import (
    Block,
    Budget,
    BudgetExceeded,
    Curator,
    Ledger,
    NoGuarantee,
    Plan,
    Randomness,
    SubsampledGaussian,
)
from sfumato.privacy.curator import Counts
from sfumato.privacy.mechanism import Query, grid_of
from sfumato.privacy.sampling import Units, padded_width

COUNT, SIZE, CLASSES = 40, 4, ("a", "b", "c")


def collection(persons: bool = False) -> PrivateImages:
    random = np.random.default_rng(3)
    pixels = random.integers(0, 256, (COUNT, 1, SIZE, SIZE), dtype=np.uint8)
    return PrivateImages(
        pixels,
        np.arange(COUNT) % 2,
        classes=CLASSES,
        persons=np.arange(COUNT) // 8 if persons else None,
    )


class Listener:
    """A tape that only listens."""

    def __init__(self) -> None:
        self.heard: list[tuple[Query, Tensor]] = []

    def exchange(self, question: Query, answer: Tensor, *, charges: int) -> Tensor:
        self.heard.append((question, answer))
        return answer


def curator(
    *events: SubsampledGaussian, private: PrivateImages | None = None, budget: Any = None, **options: Any
) -> tuple[Curator, Ledger]:
    budget = budget or Budget(5.0, 1e-5)
    ledger = Ledger(None, budget)
    run = ledger.start_run(method="test", variant="v", seeded=True)
    options.setdefault("randomness", Randomness(1))
    plan = Plan.calibrated(events, budget)
    return Curator(private or collection(), plan, ledger, run=run, **options), ledger


def train(rate: float = 0.5, steps: int = 4, **blocks: float) -> SubsampledGaussian:
    return SubsampledGaussian(
        "train", tuple(Block(name, noise) for name, noise in blocks.items()), sampling_rate=rate, steps=steps
    )


HISTOGRAM = SubsampledGaussian("counts", (Block("counts", 2.0, fixed=True),))


def test_a_histogram_is_the_true_one_plus_noise_on_a_grid() -> None:
    tape = Listener()
    door, ledger = curator(HISTOGRAM, tape=tape)
    counts = door.noisy_histogram("counts")
    question, answer = tape.heard[0]
    assert question.sums[0].total.tolist() == pytest.approx([20, 20, 0], rel=1e-6)
    assert counts.values.tolist() == pytest.approx(answer.tolist())
    assert ((answer / grid_of(2.0)) % 1 == 0).all()
    assert ledger.events() == (HISTOGRAM,)
    assert counts.proportions.sum() == pytest.approx(1.0) and counts.total > 0


def test_the_total_of_noisy_counts_can_be_a_divisor() -> None:
    assert Counts(torch.tensor([2.0, -0.5])).total == 1.5
    assert Counts(torch.tensor([-3.0, 1.0])).total == 1.0


def test_a_persons_row_counts_once() -> None:
    tape = Listener()
    door, _ = curator(HISTOGRAM, private=collection(persons=True), budget=Budget(5.0, 1e-5, unit="person"), tape=tape)
    door.noisy_histogram("counts")
    # Five persons, each with as many a as b: halves add up, and no row is longer than 1.
    assert tape.heard[0][0].sums[0].total.tolist() == pytest.approx([2.5, 2.5, 0])


def test_a_vector_longer_than_the_bound_is_clipped_and_an_odd_one_counts_as_zero() -> None:
    tape = Listener()
    private = collection()
    private._pixels[:, 0, 0, 0] = 0
    private._pixels[13, 0, 0, 0], private._pixels[15, 0, 0, 0] = 255, 254
    door, _ = curator(SubsampledGaussian("sum", (Block("sum"),)), private=private, tape=tape)

    def features(images: Tensor, labels: Tensor, random: Any) -> Tensor:
        pixel = images[:, 0, 0, 0]
        return torch.stack([torch.where(pixel == 1, 1e9, 0.0), torch.where(pixel == 254 / 255, math.nan, 0.0)], dim=1)

    door.noisy_sum("sum", features, clip_norm=0.25)
    total = tape.heard[0][0].sums[0].total
    assert total[0] == pytest.approx(0.25, rel=1e-6) and total[0] <= 0.25 and total[1] == 0


def test_by_class_keeps_each_row_in_its_slice_for_persons_too() -> None:
    def features(images: Tensor, labels: Tensor, random: Any) -> Tensor:
        return images.flatten(1)[:, :2] + 1

    sums = []
    for persons in (False, True):
        tape = Listener()
        budget = Budget(5.0, 1e-5, unit="person" if persons else "image")
        event = SubsampledGaussian("sum", (Block("sum"),))
        door, _ = curator(event, private=collection(persons), budget=budget, tape=tape)
        answer = door.noisy_sum("sum", features, clip_norm=100.0, by_class=True)
        assert answer.shape == (3, 2)
        sums.append(tape.heard[0][0].sums[0].total.view(3, 2))
    # Eight images to a person, averaged: the sum is an eighth of the one over images.
    assert torch.allclose(sums[0] / 8, sums[1])
    assert (sums[0][2] == 0).all()


def test_noise_of_groups_is_wider_by_the_root_of_their_number() -> None:
    tape = Listener()
    door, _ = curator(train(gradient=1.0), tape=tape)
    model = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 2))
    noise = door.plan.events[0].noise_multiplier

    def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Any) -> Tensor:
        return model(images.flatten(1)).square().sum(1)

    for step in door.steps("train"):
        step.noisy_gradient("gradient", model, loss, clip_norm={"0": 0.1, "1": 3.0})
    first, second = tape.heard[0][0].sums
    assert first.standard_deviation == pytest.approx(noise * 2**0.5 * 0.1)
    assert second.standard_deviation == pytest.approx(noise * 2**0.5 * 3.0)


def test_only_what_is_planned_is_answered_and_each_block_once() -> None:
    door, ledger = curator(train(a=1.0, b=1.0))

    def features(images: Tensor, labels: Tensor, random: Any) -> Tensor:
        return images.flatten(1)

    with pytest.raises(LookupError, match="not in the plan"):
        door.noisy_histogram("counts")
    kept = None
    for step in door.steps("train"):
        if kept is not None:
            with pytest.raises(RuntimeError, match="over"):
                kept.noisy_sum("b", features, clip_norm=1.0)
        with pytest.raises(LookupError, match="not planned"):
            step.noisy_sum("c", features, clip_norm=1.0)
        step.noisy_sum("a", features, clip_norm=1.0)
        with pytest.raises(RuntimeError, match="answered"):
            step.noisy_sum("a", features, clip_norm=1.0)
        kept = step
    assert ledger.events() == door.plan.events


def test_steps_begun_twice_draw_other_coins_and_other_noise() -> None:
    """Leaving a loop and entering it again goes on; it does not ask the same batch under the same noise."""
    tape = Listener()
    door, ledger = curator(train(a=1.0), tape=tape)
    for _ in range(5):
        for step in door.steps("train"):
            step.noisy_sum("a", lambda images, labels, random: images.flatten(1), clip_norm=1.0)
            break
    assert [question.step for question, _ in tape.heard] == [0, 1, 2, 3]
    assert ledger.events() == door.plan.events


def test_a_plan_that_does_not_fit_is_refused_before_any_query() -> None:
    budget = Budget(1.0, 1e-5)
    ledger = Ledger(None, budget)
    plan = Plan.calibrated([train(a=1.0)], budget)

    def start() -> Curator:
        run = ledger.start_run(method="m", variant="v", seeded=True)
        return Curator(collection(), plan, ledger, run=run, randomness=Randomness(1))

    for step in start().steps("train"):
        step.noisy_sum("a", lambda images, labels, random: images.flatten(1), clip_norm=1.0)
    spent = ledger.events()
    with pytest.raises(BudgetExceeded, match="refused"):
        start()
    assert ledger.events() == spent


def test_the_raw_records_need_a_budget_that_promises_nothing() -> None:
    door, _ = curator(HISTOGRAM)
    with pytest.raises(PermissionError, match="NoGuarantee"):
        door.open("as published")
    with pytest.raises(PermissionError, match="open them first"):
        door.claimed_sum("sum", torch.zeros(3), claimed_sensitivity=1.0, noise_multiplier=1.0)
    tape = Listener()
    door, ledger = curator(budget=NoGuarantee(), tape=tape)
    pixels, labels = door.open("as published")
    assert pixels.shape == (COUNT, 1, SIZE, SIZE) and len(labels) == COUNT
    assert ledger.spent() == float("inf")
    door.claimed_sum("sum", torch.zeros(3), claimed_sensitivity=2.0, noise_multiplier=1.5)
    assert tape.heard[0][0].claimed and tape.heard[0][0].sums[0].standard_deviation == 3.0


def test_state_belongs_to_its_record() -> None:
    door, _ = curator(train(rate=1.0, steps=2, a=1.0))
    state = door.private_state("memory", (2,), fill=1.0)

    def remember(images: Tensor, labels: Tensor, random: Any, state: Tensor) -> Tensor:
        return state + images.flatten(1)[:, :2]

    for step in door.steps("train"):
        step.update(state, remember)
        step.noisy_sum("a", lambda images, labels, random, memory: memory, clip_norm=1e3, state=state)
    expected = 1 + 2 * (collection()._pixels.reshape(COUNT, -1)[:, :2] / 255.0)
    assert np.allclose(state._values, expected, atol=1e-5)
    assert "1." not in repr(state)


def test_a_loss_that_reads_values_is_refused_before_anything_is_charged() -> None:
    door, ledger = curator(train(gradient=1.0))

    def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Any) -> Tensor:
        return model(images.flatten(1)).square().sum(1) * float(images.mean())

    with pytest.raises(ValueError, match="refused on random images"):
        for step in door.steps("train"):
            step.noisy_gradient("gradient", nn.Linear(16, 2), loss, clip_norm=1.0)
    assert ledger.events() == ()


def test_features_and_memories_that_read_values_are_refused_before_anything_is_charged() -> None:
    door, ledger = curator(train(a=1.0))
    state = door.private_state("memory", (16,))

    def ranked(images: Tensor, labels: Tensor, random: Any, state: Tensor | None = None) -> Tensor:
        return images.flatten(1) * float(images.mean())

    for step in door.steps("train"):
        with pytest.raises(ValueError, match="refused on random images"):
            step.noisy_sum("a", ranked, clip_norm=1.0)
        with pytest.raises(ValueError, match="refused on random images"):
            step.update(state, ranked)
        break
    else:
        pytest.fail("the plan has no step")
    assert ledger.events() == ()


def test_the_private_collection_tells_nothing() -> None:
    private = collection()
    assert repr(private) == "PrivateImages(shape=(1, 4, 4), classes=3)"
    for ask in (len, iter, list):
        with pytest.raises(TypeError):
            ask(private)  # type: ignore[operator]


def test_a_tape_needs_a_seed_and_a_person_needs_a_column() -> None:
    with pytest.raises(ValueError, match="seeded"):
        curator(HISTOGRAM, tape=Listener(), randomness=Randomness())
    with pytest.raises(ValueError, match="person column"):
        curator(HISTOGRAM, budget=Budget(5.0, 1e-5, unit="person"))


def test_no_more_images_of_a_person_than_allowed() -> None:
    event = SubsampledGaussian("sum", (Block("sum"),))
    budget = Budget(5.0, 1e-5, unit="person")
    door, _ = curator(event, private=collection(persons=True), budget=budget, max_images_per_unit=3)
    sizes = [len(batch.images) for step in door.steps("sum") for batch in step._batches("sum", 1, None, 256)]
    assert sizes == [15]  # five persons, three images each


@pytest.mark.parametrize("unit", ["image", "person"])
def test_removing_a_unit_changes_nobody_elses_batches_draws_and_shards(unit: Any) -> None:
    """The neighbour lacks the unit's images altogether; the others keep their ids, and all else follows from these."""
    private = collection(persons=unit == "person")
    neighbour = private._without(3, unit)
    gone = np.arange(COUNT) // 8 == 3 if unit == "person" else np.arange(COUNT) == 3
    assert len(neighbour._labels) == COUNT - gone.sum()
    seen: list[dict[float, Tensor]] = []
    batches = []
    for records in (private, neighbour):
        budget = Budget(5.0, 1e-5, unit=unit)
        running, _ = curator(train(steps=20, a=1.0), private=records, budget=budget, max_images_per_unit=5)
        drawn: dict[float, Tensor] = {}
        batches.append([])
        for step in running.steps("train"):
            batches[-1].append(set(step._batch.tolist()))
            for batch in step._batches("a", 1, None, 256):
                rows = zip(batch.images, batch.random.normal("z", 2), batch.random.rows, strict=True)
                for image, number, key in rows:
                    place = float(image.double().flatten() @ torch.arange(16.0).double())
                    drawn[place] = torch.cat([number, key[None]])
        seen.append(drawn)
    assert [batch - {3} for batch in batches[0]] == batches[1] and any(3 in batch for batch in batches[0])
    common = seen[0].keys() & seen[1].keys()
    assert len(common) >= COUNT - gone.sum()
    assert all(torch.equal(seen[0][key], seen[1][key]) for key in common)
    shards = [Units(one, unit, max_images=5).shard_of(Randomness(1), 7) for one in (private, neighbour)]
    kept = np.flatnonzero(shards[1][: len(shards[0])] >= 0)
    assert np.array_equal(shards[0][kept], shards[1][kept]) and shards[1][3] == -1


def test_ids_need_not_be_in_order_and_must_differ() -> None:
    pixels = collection()._pixels
    with pytest.raises(ValueError, match="id of its own"):
        PrivateImages(pixels, np.arange(COUNT) % 2, classes=CLASSES, ids=np.zeros(COUNT, dtype=np.int64))
    with pytest.raises(ValueError, match="from 0 on"):
        PrivateImages(pixels, np.arange(COUNT) % 2, classes=CLASSES, ids=np.arange(COUNT) - 1)
    tape = Listener()
    shuffled = PrivateImages(pixels, np.arange(COUNT) % 2, classes=CLASSES, ids=np.arange(COUNT)[::-1] * 1000)
    running, _ = curator(HISTOGRAM, private=shuffled, tape=tape)
    running.noisy_histogram("counts")
    assert tape.heard[0][0].sums[0].total.tolist() == pytest.approx([20, 20, 0], rel=1e-6)


def test_label_counts_carry_the_noise_that_was_charged() -> None:
    """Measured on the answers: counts released at a hundredth of their noise would fail."""
    residuals = []
    for seed in range(200):
        running, ledger = curator(HISTOGRAM, randomness=Randomness(seed))
        residuals.append(running.noisy_histogram("counts").values.double() - torch.tensor([20.0, 20.0, 0.0]))
        assert ledger.events() == (HISTOGRAM,)
    total = float((torch.cat(residuals) / HISTOGRAM.noise_multiplier).square().sum())
    assert 1e-6 < stats.chi2.cdf(total, 600) < 1 - 1e-6


def test_a_curator_holds_delta_against_the_declared_size() -> None:
    private = PrivateImages(collection()._pixels, np.arange(COUNT) % 2, classes=CLASSES, declared_size=1000)
    with pytest.raises(ValueError, match="declared size"):
        curator(HISTOGRAM, private=private, budget=Budget(5.0, 2e-3))


def test_a_persons_rows_are_filled_up_with_its_own_first_one() -> None:
    persons = np.array([0, 0, 0, 1, 2, 2])
    private = PrivateImages(np.zeros((6, 1, 2, 2), dtype=np.uint8), np.zeros(6, int), classes=("a",), persons=persons)
    units = Units(private, "person", max_images=4)
    table, weights = units.rows(np.arange(3), Randomness(1), "test", widest=True)
    assert table.tolist() == [[0, 1, 2, 0], [3, 3, 3, 3], [4, 5, 4, 4]]
    assert (weights > 0).sum(1).tolist() == [3, 1, 2] and weights.sum(1) == pytest.approx(1.0)


def test_rows_are_padded_by_at_most_a_quarter_to_few_widths() -> None:
    widths = [padded_width(count) for count in range(1, 1025)]
    assert all(count <= width <= 1.25 * count for count, width in enumerate(widths, start=1))
    assert padded_width(0) == 1 and len(set(widths)) < 40


def test_public_work_is_kept_and_goes_on_where_it_was_kept() -> None:
    checkpoint, kept = Mock(), {"model": nn.Linear(2, 2)}
    checkpoint.restore.return_value = 2
    door, _ = curator(HISTOGRAM, checkpoint=checkpoint)
    assert list(door.track("abcde", "public", 5, keep=kept)) == ["c", "d", "e"]
    assert checkpoint.restore.call_args_list == [call("public", kept, ())]
    assert checkpoint.save.call_args_list == [call("public", done, kept, (), last=False) for done in (3, 4, 5)]


def test_public_work_without_anything_to_keep_starts_again() -> None:
    checkpoint = Mock()
    door, _ = curator(HISTOGRAM, checkpoint=checkpoint)
    assert list(door.track("abc", "public", 3)) == ["a", "b", "c"]
    assert not checkpoint.restore.called
