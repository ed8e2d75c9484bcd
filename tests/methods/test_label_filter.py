"""The label filter: its accuracy, what it rejects, and what it costs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sfumato.data.digits import draw_digits
from sfumato.methods.dp_lflow import DPLFlow
from sfumato.methods.parts.teacher import LABEL_FILTER, rejection_sample, teacher_query, train_teacher
from sfumato.networks.features import LabelFilter
from sfumato.privacy import Budget, Curator, Ledger, Plan, PrivateRecords, Randomness


def test_it_learns_digits_and_rejects_images_of_other_classes() -> None:
    digits, others = draw_digits(1500, seed=4), draw_digits(400, seed=5)
    budget = Budget(30.0, 1e-5)
    ledger = Ledger(None, limit=budget)
    plan = Plan.calibrated([teacher_query(LABEL_FILTER, sampling_rate=0.2, steps=30)], budget)
    run = ledger.start_run(method="label filter", variant="certified", seeded=True)
    records = PrivateRecords(digits.pixels, digits.labels, classes=digits.classes)
    label_filter = LabelFilter(records.shape, 10)
    train_teacher(
        Curator(records, plan, ledger, run=run, randomness=Randomness(1)),
        LABEL_FILTER,
        label_filter,
        batch=0.2 * 1500,
        learning_rate=30.0,
    )
    images = torch.from_numpy(others.pixels).float() / 255
    labels = torch.from_numpy(np.asarray(others.labels, dtype=np.int64))
    right = (label_filter(images).argmax(1) == labels).float().mean()
    assert right > 0.85

    attempts = []

    def draw(wanted: Tensor) -> Tensor:
        """Every second drawing shows another digit."""
        attempts.append(len(wanted))
        shown = torch.where(torch.arange(len(wanted)) % 2 == 0, wanted, (wanted + 1) % 10)
        return torch.stack([images[labels == label][0] for label in shown])

    wanted = torch.arange(200) % 10
    truth = {int(label): images[labels == label][0] for label in range(10)}

    def wrong(drawn: Tensor) -> int:
        return sum(not torch.equal(image, truth[int(label)]) for image, label in zip(drawn, wanted, strict=True))

    assert wrong(rejection_sample(draw, label_filter, wanted, max_rejections=0)) == 100
    attempts.clear()
    assert wrong(rejection_sample(draw, label_filter, wanted, max_rejections=4)) < 40
    # Only rejected images are drawn again.
    assert attempts[0] == 200 and all(later < 150 for later in attempts[1:])


def test_the_label_filter_of_a_latent_flow_costs_less_than_a_hundredth_of_its_noise() -> None:
    with_filter, without = (DPLFlow(filter_steps=steps).plan(Budget(1.0, 1e-5)) for steps in (100, 0))
    assert [event.name for event in with_filter.events] == ["label counts", LABEL_FILTER.event, "training"]
    noise = [plan.event("training").noise_multiplier for plan in (with_filter, without)]
    assert 1.0 < noise[0] / noise[1] < 1.01
