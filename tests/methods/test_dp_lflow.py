"""DP-LFlow beyond the rules for every method: what it pays for, what its density knows, what its card says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sfumato.audit.membership import out_of_distribution_auroc
from sfumato.audit.replay import replay
from sfumato.data import PrivateImages
from sfumato.methods.dp_lflow import DPLFlow, LatentFlow
from sfumato.methods.registry import load
from sfumato.networks.pixels import sharpen
from sfumato.privacy import Budget, BudgetExceeded
from sfumato.privacy.gradients import PerClass
from squares import squares
from worst_case import worst_case_images

PAPER = DPLFlow(sampling_rate=0.1, steps=300)


def test_the_joint_noise_for_both_clips() -> None:
    for variant in ("certified", "conditional"):
        for epsilon, noise in ((10.0, 1.126), (1.0, 6.585)):
            plan = replace(PAPER, variant=variant).plan(Budget(epsilon, 1e-5))
            assert plan.event("training").noise_multiplier == pytest.approx(noise, rel=0.01)


def test_the_published_noise_costs_more_than_claimed() -> None:
    for claimed, really in ((10.0, 15.7), (1.0, 2.32)):
        method = DPLFlow.as_in_the_paper(claimed_epsilon=claimed)
        with pytest.raises(BudgetExceeded):
            method.plan(Budget(claimed, 1e-5))
        assert method.plan(Budget(20.0, 1e-5)).epsilon == pytest.approx(really, rel=0.005)
        assert method.claim() == {"epsilon": claimed, "delta": 1e-5, "by": method.paper}


def test_a_claim_holds_for_the_papers_steps_only() -> None:
    assert DPLFlow.small("published").claim() is None
    assert PAPER.claim() is None


def test_noise_that_the_paper_does_not_give_is_refused() -> None:
    with pytest.raises(ValueError, match="1 and 10"):
        DPLFlow(variant="published", claimed_epsilon=3.0)


@pytest.mark.long
def test_noise_on_the_code_belongs_to_its_record() -> None:
    method = replace(DPLFlow.small(), latent_noise=0.5, draws=2)
    result = replay(method, worst_case_images(), budget=Budget(3.0, 1e-5), pairs=3)
    assert not result.findings
    assert result.movement["training / gradient"] == pytest.approx(1.0, rel=1e-3)


def test_the_claim_is_struck_through_on_the_card(tmp_path) -> None:  # type: ignore[no-untyped-def]
    method = replace(DPLFlow.small("published"), claimed_epsilon=10.0, sampling_rate=0.1, steps=300)
    random = np.random.default_rng(0)
    private = PrivateImages.from_arrays(random.integers(0, 256, (3, 8, 8), dtype=np.uint8), np.arange(3) % 2, classes=2)
    release = method.fit(private, Budget(20.0, 1e-5))
    assert release.card.guarantee == "certified" and 15.6 < release.card.epsilon < 16.5
    release.save(tmp_path / "release")
    assert "<s>ε = 10 at δ = 1e-05</s>" in (tmp_path / "release" / "card.html").read_text()


def test_a_record_moves_its_own_class_only() -> None:
    models = DPLFlow.small().build((1, 28, 28), 3).generator
    assert isinstance(models, PerClass)
    assert isinstance(DPLFlow.small("conditional").build((1, 28, 28), 3).generator, LatentFlow)


@pytest.mark.long
@pytest.mark.parametrize(("variant", "right"), [("certified", 0.9), ("conditional", 0.75)])
def test_it_learns_what_the_classes_look_like_and_how_likely_an_image_is(variant: str, right: float) -> None:
    pixels, labels = squares(1000)
    method = DPLFlow(
        variant=variant,
        sampling_rate=0.1,
        steps=100,
        latent_dim=4,
        width=4,
        couplings=4,
        hidden=16,
        reconstruction_weight=1e4,
        autoencoder_learning_rate=0.02,
        flow_learning_rate=0.02,
        ema_decay=0.8,
        filter_steps=0,
    )
    release = method.fit(PrivateImages.from_arrays(pixels, labels, classes=2), Budget(300.0, 1e-5), seed=4)
    images, drawn = release.sample(200, seed=1)
    above = images[:, 0, :8].mean((1, 2)) > images[:, 0, 8:].mean((1, 2))
    assert (above == (drawn == 0)).mean() > right
    density = release.density(pixels[:400])
    assert density.shape == (400, 2) and np.isfinite(density).all()
    for label in (0, 1):
        inside, outside = density[labels[:400] == label, label], density[labels[:400] != label, label]
        assert out_of_distribution_auroc(inside, outside) > 0.7


def test_the_density_is_the_flows_and_survives_saving(tmp_path) -> None:  # type: ignore[no-untyped-def]
    release = DPLFlow.small().fit(worst_case_images(), Budget(3.0, 1e-5))
    release.save(tmp_path / "release")
    images = np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28), dtype=np.uint8)
    found = load(tmp_path / "release").density(images, batch=4)
    own = release.model.generator[2]
    code = own.autoencoder.encode(torch.tensor(images).float() / 255)
    assert np.allclose(found[:, 2], own.flow.log_density(code).numpy(), atol=1e-4)
    with pytest.raises(ValueError, match="shape"):
        release.density(images[:, :, :20])


@pytest.mark.long
def test_large_colour_images_run() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 256, 256), dtype=np.uint8)
    method = replace(DPLFlow.small(), sampling_rate=0.5)
    release = method.fit(PrivateImages.from_arrays(pixels, np.arange(4) % 2, classes=2), Budget(3.0, 1e-5))
    assert release.sample(2).images.shape == (2, 3, 256, 256)


def test_sharpening_keeps_flat_images_and_steepens_edges() -> None:
    flat = torch.full((1, 3, 8, 8), 0.4)
    assert torch.allclose(sharpen(flat, 5.0), flat)
    edge = torch.zeros(1, 1, 8, 8)
    edge[..., 4:] = 0.6
    steep = sharpen(edge * 0.5 + 0.2, 5.0)
    assert steep[0, 0, 4, 4] - steep[0, 0, 4, 3] > 0.3
    noisy = torch.rand(1, 1, 64, 64, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.4
    assert sharpen(noisy, 1.0).std() < noisy.std()


def test_sampling_keeps_the_order_of_the_labels() -> None:
    pixels, labels = squares(400)
    private = PrivateImages.from_arrays(pixels, labels, classes=2)
    # At 1e-6 a pixel of one draw in a thousand is rounded to another number.
    release = replace(DPLFlow.small(), temperature=1e-12).fit(private, Budget(3.0, 1e-5))
    wanted = np.array([1, 0, 0, 1, 1])
    images, _ = release.sample(5, labels=wanted)
    assert np.array_equal(images[0], images[3]) and np.array_equal(images[1], images[2])
    assert not np.array_equal(images[0], images[1])
