"""GS-WGAN beyond the rules for every method: what the authors' noise is worth, and what critics of shards learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.audit.replay import replay
from sfumato.data import PrivateImages
from sfumato.methods.gs_wgan import GSWGAN, ShardedCritics, _CriticUpdate
from sfumato.networks.generators import Critic
from sfumato.privacy import Budget, BudgetExceeded, NoGuarantee, PrivateRecords, Randomness
from squares import squares


def test_the_authors_noise_is_worth_more_than_they_claim() -> None:
    method = GSWGAN.as_in_the_paper()
    assert method.plan(Budget(25.0, 1e-5)).epsilon == pytest.approx(24.2, abs=0.01)
    with pytest.raises(BudgetExceeded):
        method.plan(Budget(24.0, 1e-5))
    claim = method.claim()
    assert claim is not None and claim["epsilon"] == 10.0
    assert replace(method, steps=10).claim() is None and replace(method, variant="certified").claim() is None


def test_a_shard_contributes_one_vector_however_many_images_it_has() -> None:
    few, many = (GSWGAN(fakes=fakes).queries() for fakes in (1, 100))
    assert few == many
    few, many = (GSWGAN(variant="published", fakes=fakes).queries() for fakes in (1, 100))
    assert few[1].noise_multiplier == pytest.approx(10 * many[1].noise_multiplier)


def critics() -> tuple[ShardedCritics, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two shards of white images, shown black fakes."""
    torch.manual_seed(0)
    found = ShardedCritics(Critic((1, 8, 8), 2, width=4), steps=20, learning_rate=0.01, gradient_penalty=10.0)
    white = torch.ones(2, 3, 1, 8, 8)
    return found, white, torch.zeros_like(white), torch.zeros(2, 3, dtype=torch.int64)


def test_a_critic_learns_to_tell_and_its_gradient_leads_to_its_images() -> None:
    found, white, black, labels = critics()
    start, shares = torch.zeros(2, len(found)), torch.full((2, 3), 1 / 3)
    moved = found.trained(start, white, black, labels, shares, torch.rand(2, 3, 20))
    assert (found.values(moved, white, labels) > found.values(moved, black, labels)).all()
    gradients = found.image_gradients(moved, black, labels)
    assert (gradients.flatten(2).sum(2) > 0).all()
    assert gradients.flatten(2).norm(dim=2).mean() == pytest.approx(1.0, abs=0.5)


def test_no_fake_gets_a_gradient_above_the_clip_norm() -> None:
    """Each image gradient is clipped on its own, so that one fake does not take the room of the others."""
    found, white, black, labels = critics()
    method = replace(GSWGAN.small(), clip_norm=0.01, fakes=3, warm_start_rounds=0)
    update = _CriticUpdate(method, found, pool=black[0].expand(2, 3, 1, 8, 8), fakes=black[0], labels=labels[0])
    rows = torch.arange(6)
    draws = Randomness(0).draws(rows, torch.zeros_like(rows), "critics")
    state = update(white, labels, torch.full((2, 3), 1 / 3), draws, torch.zeros(2, len(found) + 3 * 64))
    norms = state[:, len(found) :].view(2, 3, 64).norm(dim=2)
    assert torch.allclose(norms, torch.full_like(norms, 0.01), rtol=1e-5)


def test_padding_rows_do_not_change_a_critic() -> None:
    found, white, black, labels = critics()
    start, shares, mixes = torch.zeros(2, len(found)), torch.tensor([[1.0, 0.0, 0.0]] * 2), torch.rand(2, 3, 20)
    other = white.clone()
    other[:, 1:] = 0.3
    moved = (found.trained(start, images, black, labels, shares, mixes) for images in (white, other))
    assert torch.equal(*moved)


@pytest.mark.long
def test_one_unit_can_reverse_the_vector_of_its_shard() -> None:
    """The bound of twice the clip norm is reached, so that replay would see a shard that moves further.

    Critics of the small form are trained by one step. A unit that takes over such a critic turns its gradients by about
    a right angle, which is a movement of √2 of the 2 that are paid for; a critic that has learnt turns them around.
    """
    pixels = np.zeros((3, 1, 8, 8), dtype=np.float32)
    pixels[0] = 100.0
    private = PrivateRecords(pixels, np.zeros(3, dtype=np.int64), classes=("a", "b"))
    sizes = {"shards": 1, "sampling_rate": 1.0, "steps": 1, "critic_steps": 20, "critic_width": 4}
    method = replace(GSWGAN.small(), critic_learning_rate=0.01, **sizes)
    result = replay(method, private, budget=Budget(3.0, 1e-5), pairs=3)
    assert not result.findings and result.pairs == 3
    assert result.vacuous(0.9) == []


@pytest.mark.long
def test_it_learns_what_the_classes_look_like() -> None:
    pixels, labels = squares(200)
    method = GSWGAN(
        sampling_rate=0.5,
        steps=15,
        shards=20,
        fakes=8,
        warm_start_rounds=3,
        critic_width=2,
        critic_steps=3,
        critic_learning_rate=0.01,
        latent_dim=4,
        width=4,
        learning_rate=0.02,
        ema_decay=0.5,
    )
    release = method.fit(PrivateImages.from_arrays(pixels, labels, classes=2), NoGuarantee(), seed=2)
    images, drawn = release.sample(200, seed=1)
    above = images[:, 0, :8].mean((1, 2)) > images[:, 0, 8:].mean((1, 2))
    assert (above == (drawn == 0)).mean() > 0.8


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="warm_start_rounds at least 0"):
        GSWGAN(warm_start_rounds=-1)
