"""DP²-VAE beyond the rules for every method: who meets whom, what sharing costs, and why the paper's proof fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.audit.canary import accountant_check, ledger_losses, white_box
from sfumato.audit.replay import Replay, replay
from sfumato.data import PrivateImages
from sfumato.methods.dp2_vae import DP2VAE
from sfumato.methods.parts.record_posteriors import LatentGenerator, decoder_for
from sfumato.methods.published.dp2_vae import DP2VAEPublished, stacked_weights
from sfumato.networks.vae import Decoder, channels_of
from sfumato.privacy import Budget, BudgetExceeded, NoGuarantee, PrivateRecords
from sfumato.privacy.gradients import PerClass
from squares import squares
from worst_case import worst_case_images


def test_posteriors_cost_nothing() -> None:
    for epsilon, noise in ((10.0, 1.126), (1.0, 6.585)):
        plan = DP2VAE(sampling_rate=0.1, steps=300, prior_noise=0.0).plan(Budget(epsilon, 1e-5))
        assert plan.event("training").noise_multiplier == pytest.approx(noise, rel=0.01)
        assert plan.to_json()["relation"] == "add or remove one unit"


def test_a_shard_costs_the_same_whatever_its_size() -> None:
    for epsilon, noise in ((10.0, 1.72), (1.0, 12.9)):
        for shards in (1000, 60_000):
            plan = DP2VAE(variant="shard", sampling_rate=0.1, steps=300, shards=shards).plan(Budget(epsilon, 1e-5))
            assert plan.event("training").noise_multiplier == pytest.approx(noise, rel=0.01)
            assert plan.to_json()["relation"] == "add, remove or replace one unit"


def test_the_cost_of_shards_is_that_of_turning_a_vector_around() -> None:
    """Draws of the privacy loss between +C and -C know nothing of the accountant."""
    plan = DP2VAE(variant="shard", sampling_rate=0.1, steps=30).plan(Budget(2.0, 1e-2))
    losses = ledger_losses(plan.events, 100_000, np.random.default_rng(0))
    assert np.maximum(0.0, 1.0 - np.exp(plan.epsilon - losses)).mean() == pytest.approx(1e-2, rel=0.06)
    assert not accountant_check(plan.events, delta=1e-2, draws=20_000, seed=0).flagged


@pytest.mark.long
def test_canaries_find_nothing_in_shards() -> None:
    method = replace(DP2VAE.small("shard"), shards=10, width=8)
    audit = white_box(method, worst_case_images(), budget=Budget(3.0, 1e-5), canaries=200, seed=1)
    assert audit.bound.epsilon <= 3.0 and not audit.flagged


def test_the_card_of_a_shard_run_says_how_it_was_counted() -> None:
    card = DP2VAE.small("shard").fit(worst_case_images(), Budget(3.0, 1e-5)).card
    assert card.relation == "add, remove or replace one unit" and card.guarantee == "certified"
    assert "2 shards" in card.sampler
    record = DP2VAE.small().fit(worst_case_images(), Budget(3.0, 1e-5)).card
    assert record.relation == "add or remove one unit" and "each unit" in record.sampler


def test_one_record_replaces_the_vector_of_its_shard() -> None:
    """Removing one moves the sum by more than one clip norm, which is why shards are accounted under replace-one."""
    result = replay(DP2VAE.small("shard"), worst_case_images(), budget=Budget(3.0, 1e-5), units=[4, 5], seed=2)
    assert not result.findings
    assert result.movement["training / gradient"] > 0.75  # of twice the clip norm


@pytest.mark.parametrize("start", ["random", pytest.param("encoder", marks=pytest.mark.long)])
def test_other_starts_belong_to_their_record_too(start: str) -> None:
    method = replace(DP2VAE.small(), posterior_init=start, clip_norm=1e-3, encoder_clip_norm=1e-3)
    result = replay(method, worst_case_images(), budget=Budget(3.0, 1e-5), pairs=3)
    assert not result.findings
    assert ("encoder / gradient" in result.movement) == (start == "encoder")
    assert "training / gradient" not in result.vacuous()


def witness() -> PrivateRecords:
    """Fifty-nine grey images and, last, a white one. All are legal, and of one class."""
    random = np.random.default_rng(0)
    pixels = random.uniform(0.5, 0.52, (60, 1, 28, 28)).astype(np.float32)
    pixels[-1] = 1.0
    return PrivateRecords(pixels, classes=("a",))


def published(**changes: object) -> Replay:
    settings: dict[str, object] = {
        "encoders": 1,
        "iterations": 30,
        "learning_rate": 0.2,
        "claimed_epsilon": 10.0,
    }
    settings |= changes
    method = replace(DP2VAEPublished.small(), **settings)  # type: ignore[arg-type]
    return replay(method, witness(), budget=NoGuarantee(), units=[59])


@pytest.mark.parametrize("pretraining", [0, pytest.param(20, marks=pytest.mark.long)])
def test_a_shared_encoder_moves_far_more_than_the_paper_claims(pretraining: int) -> None:
    result = published(pretraining_steps=pretraining)
    assert result.movement["decoder / decoder"] > 5
    assert [finding.rule for finding in result.findings if "claimed" in finding.detail] == ["movement"]


def test_an_encoder_that_saw_nobody_moves_what_is_claimed() -> None:
    """The control: encoders random and frozen, everything else the same."""
    result = published(pretraining_steps=0, train_encoders=False)
    assert result.movement["decoder / decoder"] <= 1
    assert not result.findings


def test_the_published_variant_promises_nothing() -> None:
    # All encoders go as one stack; most subsets of sixty records are empty.
    release = replace(DP2VAEPublished.small(), encoders=300).fit(worst_case_images(), NoGuarantee())
    assert release.card.guarantee == "no guarantee" and release.card.epsilon is None
    assert release.card.claim.epsilon == 1.0
    with pytest.raises(BudgetExceeded, match="NoGuarantee"):
        DP2VAEPublished.small().fit(worst_case_images(), Budget(3.0, 1e-5))


def test_stacked_weights_are_fresh_and_in_range() -> None:
    layer = torch.nn.Linear(5, 4)
    weights = stacked_weights(layer, 3)["weight"]
    assert weights.shape == (3, 4, 5) and not torch.equal(weights[0], weights[1])
    assert weights.abs().max() <= layer.weight.abs().max()


@pytest.mark.long
@pytest.mark.parametrize("variant", ["record", "shard"])
def test_a_decoder_for_each_class_meets_no_other_record(variant: str) -> None:
    """Which labels the other records of a pass have decides nothing, not even a shape."""
    method = replace(DP2VAE.small(variant), conditioning="decoder")
    result = replay(method, worst_case_images(24, size=12), budget=Budget(30.0, 1e-3), pairs=2)
    assert result.pairs == 2 and not result.findings


def test_classes_side_by_side_decode_as_one_by_one() -> None:
    shape = (1, 16, 16)
    model = PerClass([Decoder(shape, latent_dim=3, channels=channels_of(shape, 2)) for _ in range(3)])
    labels, code = torch.tensor([2, 0, 2, 2, 0]), torch.randn(5, 3)
    found = decoder_for(model, labels)(code)
    for row, label in enumerate(labels):
        assert torch.allclose(found[row], model[int(label)](code[row : row + 1], None)[0], atol=1e-5)


def test_a_prior_is_learned_where_enough_is_known() -> None:
    generator = LatentGenerator(torch.nn.Identity(), 2, 2)
    mean, covariance = torch.tensor([1.0, -1.0]), torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    second = covariance + torch.outer(mean, mean)
    row = torch.cat([torch.ones(1), mean / 2**0.5, second.flatten() / 2])
    generator.fit_prior(torch.stack([1000 * row, 3 * row]))
    assert torch.allclose(generator.mean[0], mean, atol=1e-4)
    assert torch.allclose(generator.root[0] @ generator.root[0].T, covariance, atol=1e-3)
    assert torch.equal(generator.root[1], torch.eye(2)) and not generator.mean[1].any()
    drawn = generator.draw(torch.zeros(20_000, dtype=torch.int64), temperature=1.0)
    assert torch.allclose(drawn.T.cov(), covariance, atol=0.1)


@pytest.mark.long
@pytest.mark.parametrize(("variant", "steps", "right"), [("record", 40, 0.9), ("shard", 80, 0.65)])
def test_it_learns_what_the_classes_look_like(variant: str, steps: int, right: float) -> None:
    pixels, labels = squares(600)
    method = DP2VAE(
        variant=variant,
        sampling_rate=0.2,
        steps=steps,
        latent_dim=4,
        width=4,
        draws=1,
        inner_steps=3,
        learning_rate=0.02,
        shards=400,
        ema_decay=0.8,
    )
    release = method.fit(PrivateImages.from_arrays(pixels, labels, classes=2), Budget(40.0, 1e-5), seed=2)
    images, drawn = release.sample(200, seed=1)
    above = images[:, 0, :8].mean((1, 2)) > images[:, 0, 8:].mean((1, 2))
    assert (above == (drawn == 0)).mean() > right


def test_a_start_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="zero, random, encoder"):
        DP2VAE(posterior_init="elsewhere")
