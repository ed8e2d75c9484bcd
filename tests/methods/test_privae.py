"""PRIVAE beyond the rules for every method: what its forms pay for, what its divergences measure, what it learns."""

from __future__ import annotations

import importlib
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.audit.replay import replay
from sfumato.experiments.measures import hoyer_sparsity, log_likelihood, prior_distance
from sfumato.methods.parts.divergences import CAUCHY_SCALES, CauchyMMD, ForwardKL, gradient_of
from sfumato.methods.privae import PRIVAE
from sfumato.networks.vae import Corners, Posterior, SparseMixture, StandardNormal, VariationalAutoencoder
from sfumato.privacy import Budget, BudgetExceeded, PrivateRecords
from worst_case import worst_case_images

PRIORS = [StandardNormal(2), SparseMixture(2), Corners(2)]


def test_the_joint_noise_at_the_papers_setting() -> None:
    for epsilon, noise in ((10.0, 0.492), (1.0, 1.050)):
        plan = PRIVAE.as_in_the_paper(variant="grouped").plan(Budget(epsilon, 1e-5))
        assert plan.event("training").noise_multiplier == pytest.approx(noise, rel=0.01)


def test_the_linearised_form_costs_an_eighth_more_noise() -> None:
    without, linearised = (replace(PRIVAE.as_in_the_paper(variant="linearised"), alpha=alpha) for alpha in (0.0, 100.0))
    budget = Budget(10.0, 1e-5)
    own = without.plan(budget).event("training").blocks[-1].noise_multiplier
    both = linearised.plan(budget).event("training").blocks
    assert both[-1].noise_multiplier / own == pytest.approx(math.sqrt(1.25), rel=0.01)
    assert both[0].noise_multiplier == pytest.approx(2 * both[1].noise_multiplier)


def test_the_published_noise_at_the_epsilon_it_has() -> None:
    for claimed, really in ((10.0, 11.4), (3.0, 3.16), (1.0, 0.974)):
        method = PRIVAE.as_in_the_paper(claimed_epsilon=claimed)
        assert method.plan(Budget(20.0, 1e-5)).epsilon == pytest.approx(really, rel=0.01)
        assert method.claim() == {"epsilon": claimed, "delta": 1e-5, "by": method.paper}
        if claimed > 1:
            with pytest.raises(BudgetExceeded):
                method.plan(Budget(claimed, 1e-5))


def test_a_claim_holds_for_the_papers_steps_only() -> None:
    assert PRIVAE.small("published").claim() is None
    assert PRIVAE.as_in_the_paper(variant="grouped").claim() is None
    with pytest.raises(ValueError, match="1, 3, 10"):
        PRIVAE(variant="published", claimed_epsilon=2.0)


def test_unknown_parts_are_refused() -> None:
    for wrong in ({"prior": "cauchy"}, {"divergence": "js"}, {"likelihood": "poisson"}, {"alpha": -1.0}):
        with pytest.raises(ValueError, match="must"):
            PRIVAE(**wrong)  # type: ignore[arg-type]


@pytest.mark.long
def test_one_record_turns_the_gradient_of_the_other_in_a_coupled_batch() -> None:
    """Batches of two: a record's own vector is a third of the sensitivity 3·C ÷ 2, the other's vector the rest."""
    method = replace(PRIVAE.small("micro-aggregation"), sampling_rate=0.05, steps=25, batch_size=2, hidden=1)
    result = replay(method, worst_case_images(), budget=Budget(30.0, 1e-5), units=range(53, 58), seed=5)
    assert result.findings == []
    assert result.movement["training / gradient"] > 0.7


@pytest.mark.parametrize("variant", ["linearised", pytest.param("grouped", marks=pytest.mark.long)])
def test_the_forward_divergence_keeps_the_rules_too(variant: str) -> None:
    method = replace(PRIVAE.small(variant), prior="corners", divergence="kl", likelihood="normal", draws=2)
    result = replay(method, worst_case_images(size=8), budget=Budget(3.0, 1e-5), pairs=5)
    assert result.findings == []


def test_priors_draw_what_their_density_says() -> None:
    for prior in PRIORS:
        torch.manual_seed(0)
        axis = torch.linspace(-6, 7, 800)
        grid = torch.cartesian_prod(axis, axis)
        density = prior.log_density(grid).exp()
        cell = float(axis[1] - axis[0]) ** 2
        assert float(density.sum()) * cell == pytest.approx(1.0, abs=0.02)
        drawn = prior.draw(40_000)
        mean = (density[:, None] * grid).sum(0) * cell
        assert torch.allclose(drawn.mean(0), mean, atol=0.03)
        frequencies = torch.tensor([0.3, 1.0, 2.5])
        cosine, sine = prior.characteristic_function(frequencies)
        angles = drawn[:, :1] * frequencies
        assert torch.allclose(angles.cos().mean(0), cosine, atol=0.02)
        assert torch.allclose(angles.sin().mean(0), sine, atol=0.02)


def exact(codes: Tensor) -> Posterior:
    return Posterior(codes, torch.zeros_like(codes))


def test_the_embedding_is_the_cauchy_kernel() -> None:
    fine = CauchyMMD(StandardNormal(3), frequencies=4000)
    one, other = torch.randn(1, 3), torch.randn(1, 3)
    nothing = torch.zeros(1, 3)
    product = float((fine.embed(exact(one), nothing) * fine.embed(exact(other), nothing)).sum())
    apart = (one - other).square()
    kernel = torch.stack([scale / (scale + apart) for scale in CAUCHY_SCALES]).mean()
    assert product == pytest.approx(float(kernel), abs=0.01)
    assert float(fine.embed(exact(one), nothing).norm()) == pytest.approx(1.0, rel=1e-5)


def test_the_discrepancy_vanishes_at_the_prior_and_is_unbiased() -> None:
    torch.manual_seed(0)
    prior = SparseMixture(4)
    measure = CauchyMMD(prior)
    near = [float(measure.between(measure.embed(exact(prior.draw(16)), torch.zeros(16, 4)))) for _ in range(400)]
    assert abs(float(np.mean(near))) < 3 * float(np.std(near)) / 20
    far = measure.between(measure.embed(exact(prior.draw(400) + 1.5), torch.zeros(400, 4)))
    assert float(far) > 0.05


def test_the_forward_divergence_rewards_posteriors_where_the_prior_is() -> None:
    torch.manual_seed(0)
    prior = Corners(2)
    measure = ForwardKL(prior)
    noise = torch.zeros(200, 2)
    there, elsewhere = prior.draw(200), torch.full((200, 2), 0.5)
    embedded = [measure.embed(Posterior(codes, torch.full((200, 2), 0.03)), noise) for codes in (there, elsewhere)]
    assert all(float(e.norm(dim=1).max()) <= 1 + 1e-5 for e in embedded)
    assert float(measure.between(embedded[0])) < float(measure.between(embedded[1]))
    # A density that noise made negative still weightss, and no more than one at the floor.
    weights = gradient_of(measure.distance, torch.tensor([-1.0, measure.floor / 2, 0.5]))
    assert weights[0] == weights[1] and weights[0] < weights[2] < 0


def test_sparsity_knows_its_extremes() -> None:
    torch.manual_seed(0)
    one_of = torch.eye(20).repeat(30, 1) * torch.randn(600, 1)
    assert hoyer_sparsity(one_of) == pytest.approx(1.0, abs=1e-6)
    assert hoyer_sparsity(torch.sign(torch.randn(600, 20))) == pytest.approx(0.0, abs=1e-2)
    assert hoyer_sparsity(SparseMixture(50).draw(2000)) > hoyer_sparsity(StandardNormal(50).draw(2000)) + 0.05


def test_the_likelihood_is_the_marginal_of_a_model_that_ignores_its_code() -> None:
    method = PRIVAE(latent_dim=2, hidden=3, prior="normal")
    model = VariationalAutoencoder((1, 2, 2), 1, latent_dim=2, hidden=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    images = (torch.rand(50, 1, 2, 2) > 0.5).float()
    found = log_likelihood(model, method, images, torch.zeros(50, dtype=torch.int64), draws=4)
    assert found == pytest.approx(4 * math.log(0.5), rel=1e-5)  # the posterior is the prior, each pixel a coin
    posterior = model.encode(images, torch.zeros(50, dtype=torch.int64))
    assert abs(prior_distance(posterior, torch.randn(50, 2), method.code_prior())) < 0.05


def arms(count: int) -> PrivateRecords:
    """Four heaps of points, as images of one by two pixels."""
    random = np.random.default_rng(0)
    centres = np.array([[0.25, 0.5], [0.75, 0.5], [0.5, 0.25], [0.5, 0.75]])[np.arange(count) % 4]
    return PrivateRecords((centres + 0.03 * random.standard_normal((count, 2))).astype(np.float32)[:, None, None])


@pytest.mark.long
def test_the_divergence_sends_heaps_to_the_corners() -> None:
    private = arms(400)
    method = PRIVAE(
        sampling_rate=0.5,
        steps=60,
        prior="corners",
        divergence="kl",
        alpha=3.0,
        beta=0.0,
        likelihood="normal",
        pixel_std=0.1,
        latent_dim=2,
        hidden=16,
        depth=2,
        learning_rate=0.03,
        count_noise=20.0,
    )
    apart = []
    for alpha in (3.0, 0.0):
        model = replace(method, alpha=alpha).fit(private, Budget(100.0, 1e-5), seed=1).model
        assert isinstance(model, VariationalAutoencoder)
        images = torch.from_numpy(private._pixels)
        with torch.no_grad():
            codes = model.encode(images, torch.zeros(400, dtype=torch.int64)).mean
        apart.append(float(torch.cdist(codes, Corners(2).corners).min(1).values.mean()))
    assert apart[0] < 0.6 * apart[1]


def test_the_documents_own_loss_runs(tmp_path: Path) -> None:
    """The lines of the page about batch losses, as they stand there, audited."""
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "engine.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "own.py").write_text(code)
    sys.path.insert(0, str(tmp_path))
    try:
        own = importlib.import_module("own").Decorrelated
    finally:
        sys.path.remove(str(tmp_path))
    result = replay(own.small(), worst_case_images(size=8), budget=Budget(3.0, 1e-5), pairs=5)
    assert result.findings == []
    assert result.movement["train / gradient"] > 0.9
