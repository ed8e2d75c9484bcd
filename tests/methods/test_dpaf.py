"""DPAF: what its blocks cost, that it learns, what each knob does, and how the published form fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfumato.audit.replay import replay
from sfumato.methods.dpaf import DPAF
from sfumato.methods.parts.aggregate import FeatureAggregate, directional_features, mean_distance
from sfumato.methods.published.dpaf import DPAFPublished
from sfumato.networks.generators import Front
from sfumato.privacy import Budget, BudgetExceeded, NoGuarantee, PrivateRecords

BUDGET = Budget(3.0, 1e-5)


def bars(count: int = 40, size: int = 16) -> PrivateRecords:
    """A bright bar somewhere: upright for class 0, lying for class 1."""
    random = np.random.default_rng(3)
    pixels, labels = random.integers(0, 40, (count, 1, size, size)).astype(np.uint8), np.arange(count) % 2
    for image, label in zip(pixels[:, 0], labels, strict=True):
        start = random.integers(4, size - 7)
        image[(slice(None), slice(start, start + 3)) if label == 0 else (slice(start, start + 3), slice(None))] = 220
    return PrivateRecords(pixels, labels, classes=("upright", "lying"))


# What it costs


def test_the_split_moves_noise_between_the_blocks_and_leaves_their_sum() -> None:
    """1/σ² = 1/σ_a² + 1/σ_g², whatever the split: the two blocks share a batch and are one event."""
    share = 0.2
    method = DPAF(gradient_share=share, sampling_rate=0.02, steps=1000)
    (event,) = method.plan(Budget(10.0, 1e-5)).events
    aggregate, gradient = event.blocks
    assert event.noise_multiplier == pytest.approx(0.677, abs=0.003)  # joint .68 at this rate and number of steps
    assert aggregate.noise_multiplier**-2 == pytest.approx((1 - share) * event.noise_multiplier**-2)
    assert gradient.noise_multiplier**-2 == pytest.approx(share * event.noise_multiplier**-2)


def test_a_classifier_for_conv1_is_on_the_ledger() -> None:
    names = [event.name for event in DPAF(conv1="pretrained").plan(BUDGET).events]
    assert names == ["classifier", "training"]
    assert [event.name for event in DPAF().plan(BUDGET).events] == ["training"]


# What it learns


def test_fakes_with_the_right_means_are_nearer_and_sameness_earns_nothing() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(2, 4000, 3) + torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]]])
    right, wrong = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.zeros(2, 3)
    assert float(mean_distance(vectors, right)) < float(mean_distance(vectors, wrong)) - 4.0
    # |E v|² of two fakes, over many draws: without the pairs of a fake with itself it is not the variance too.
    few = vectors.view(2, 2000, 2, 3).transpose(0, 1)
    estimates = torch.stack([mean_distance(one, wrong) for one in few])
    assert float(estimates.mean()) == pytest.approx(5.0, abs=0.4)


def test_the_aggregate_averages_answers_and_forgets_when_told() -> None:
    steady, fading = (FeatureAggregate(2, 3, count_value=0.5, decay=decay) for decay in (1.0, 0.5))
    for value in (2.0, 4.0):
        for aggregate in (steady, fading):
            aggregate.add(torch.tensor([[value, 0.0, 5.0], [0.0, value, 10.0]]), sampling_rate=0.1)
    assert steady.counts.values.tolist() == pytest.approx([100.0, 200.0])
    torch.testing.assert_close(steady.means[0, 0], torch.tensor(30.0 / 100))
    torch.testing.assert_close(fading.means[0, 0], torch.tensor((2.0 * 0.5 + 4.0) / 0.1 / 1.5 / 100))


@pytest.mark.long
def test_it_learns_which_way_the_bars_lie() -> None:
    method = DPAF(
        width=4,
        feature_maps=4,
        feature_layers=2,
        thumbnail_size=8,
        second_moment_size=0,
        latent_dim=8,
        generator_width=4,
        iterations=100,
        fakes_per_class=16,
        split="C1-C1-x",
    )
    release = method.fit(bars(300), Budget(50.0, 1e-5), seed=0)
    images, labels = release.sample(200)
    across = images.astype(float)[:, 0]
    # Along an upright bar the columns differ and the rows do not.
    lying = across.mean(2).std(1) > across.mean(1).std(1)
    assert float((lying == (labels == 1)).mean()) > 0.9
    assert release.card.class_counts == pytest.approx([150, 150], abs=20)


def test_a_records_gradient_depends_on_its_own_features_and_direction() -> None:
    torch.manual_seed(0)
    front = Front((1, 8, 8), 2, layers=(1, 1), width=2, feature_maps=2)
    images, labels, direction = torch.rand(2, 1, 8, 8), torch.tensor([1, 0]), torch.randn(2, front.length)
    values = directional_features(front, images, labels, direction)
    torch.testing.assert_close(values[0], front(images[:1], labels[:1])[0] @ direction[1])


# Every knob


@pytest.mark.parametrize(
    "knobs",
    [
        {"conv1": "pretrained", "classifier_steps": 2, "classifier_sampling_rate": 0.6},
        {"conv1": "separate", "compression": 0.9},
        {"conv1": "joint", "compression": 0.2, "quantise": True},
        *(
            pytest.param(knobs, marks=pytest.mark.long)
            for knobs in (
                {"matching_weight": 0.0, "activation": "tanh", "split": "C1-C2-x"},
                {
                    "adversarial_weight": 0.0,
                    "asymmetry": 2,
                    "discriminator_steps": 2,
                    "aggregate_decay": 0.5,
                    "label_plane": False,
                },
                {"gradient_share": 0.0, "adversarial_weight": 0.0, "sampling_rate": 1.0, "steps": 1},
            )
        ),
    ],
)
def test_replay_finds_nothing_whatever_the_knobs(knobs: dict[str, object]) -> None:
    method = replace(DPAF.small(), **knobs)  # type: ignore[arg-type]
    result = replay(method, bars(24), budget=BUDGET, pairs=2)
    assert not result.findings and result.pairs == 2
    assert all(value > 0.5 for value in result.movement.values())


@pytest.mark.parametrize("transfer", [pytest.param("discriminator", marks=pytest.mark.long), "both"])
def test_public_images_are_a_start(transfer: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "public.npz", images=random.integers(0, 256, (12, 12, 12), dtype=np.uint8), labels=np.arange(12) % 3
    )
    method = replace(DPAF.small(), public=str(tmp_path / "public.npz"), transfer=transfer, iterations=1)
    assert method.fit(bars(12), BUDGET).sample(3).images.shape == (3, 1, 16, 16)


def test_wrong_parameters_are_refused() -> None:
    for wrong in (
        {"split": "C2-C2"},
        {"activation": "relu"},
        {"conv1": "frozen"},
        {"transfer": "all"},
        {"gradient_share": 1.0},
        {"matching_weight": 0.0},
        {"aggregate_decay": 0.0},
        {"discriminator_steps": 0},
        {"conv1": "joint"},
        {"split": "C2-x-C1", "gradient_share": 0.5},
    ):
        with pytest.raises(ValueError, match=r"must|split|weights|needs|no conv2|at least"):
            DPAF(**wrong)  # type: ignore[arg-type]


# As published


@pytest.mark.parametrize(
    "options", [{}, {"generator_loss": "mean", "batches": "one class", "conv1": "random", "asymmetry": 2}]
)
def test_the_published_form_needs_raw_records_and_says_so(options: dict[str, Any]) -> None:
    method = replace(DPAFPublished.small(), **options)
    with pytest.raises(BudgetExceeded, match="NoGuarantee"):
        method.fit(bars(), BUDGET)
    release = method.fit(bars(), NoGuarantee(), seed=0)
    assert release.card.guarantee == "no guarantee" and release.card.claim.epsilon == 10
    assert release.sample(3).images.shape == (3, 1, 16, 16)
    assert replace(method, noise=False).fit(bars(), NoGuarantee(), seed=0).card.claim is None
    with pytest.raises(ValueError, match="nothing is left for conv2"):
        replace(method, aggregate_epsilon=10.0)


def test_replay_finds_the_published_gradients_move_more_than_five_times_the_claim() -> None:
    """All records are one batch, so it is not the drawing of batches that differs: it is v, the slope of the loss at
    the aggregate before the noise, which one record turns for everybody."""
    result = replay(DPAFPublished.small(), bars(24), budget=NoGuarantee(), pairs=3)
    assert result.flagged
    assert result.movement["conv1 gradient / conv1 gradient"] > 5.0
    assert result.movement["conv2 gradient / conv2 gradient"] > 2.0
    assert result.movement["aggregate / aggregate"] <= 1.0  # DPAGG alone is right
