"""DPPM: the sampler against laws it must meet, the no-op theorem, and what is flagged about the published form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sfumato.audit.replay import replay
from sfumato.methods.dppm import DPPM
from sfumato.methods.parts.score_sampling import randomised_response, sliced_loss
from sfumato.methods.published.dppm import DPPMPublished
from sfumato.networks.edm import heun
from sfumato.networks.score import ScoreNetwork, hamiltonian, karras_sigmas, momenta
from sfumato.privacy import Budget, BudgetExceeded, NoGuarantee, PrivateRecords, Randomness
from sfumato.privacy.gradients import Batch, Performance, clipped_sum

BUDGET = Budget(3.0, 1e-5)


def digits(count: int = 24, size: int = 12) -> PrivateRecords:
    """Bright bars, upright for class 0 and lying for class 1."""
    random = np.random.default_rng(3)
    pixels = random.integers(0, 40, (count, 1, size, size)).astype(np.uint8)
    labels = np.arange(count) % 2
    middle = slice(size // 2 - 2, size // 2 + 2)
    pixels[labels == 0, :, :, middle] = 220
    pixels[labels == 1, :, middle, :] = 220
    return PrivateRecords(pixels, labels, classes=("upright", "lying"))


# The sampler, on a Gaussian of which everything is known


def gaussian_score(place: Tensor, level: Tensor) -> Tensor:
    """Data N(0.3, 0.2²) with noise of the level on top."""
    return -(place - 0.3) / (0.2**2 + level.view(-1, 1, 1, 1).square())


def gaussian_denoise(place: Tensor, level: Tensor) -> Tensor:
    return place + level.view(-1, 1, 1, 1).square() * gaussian_score(place, level)


def test_hamiltonian_dynamics_end_in_the_law_of_the_data() -> None:
    for distribution in ("gaussian", "rayleigh", "uniform"):
        for metropolis in (True, False):
            torch.manual_seed(0)
            levels = karras_sigmas(30, sigma_max=5.0, sigma_min=0.01)
            start = 5.0 * torch.randn(4000, 1, 2, 2)
            found = hamiltonian(
                gaussian_score,
                start,
                levels,
                leapfrog_steps=3,
                step_size=0.5,
                momentum_distribution=distribution,
                metropolis=metropolis,
            )
            # At small levels the data's own spread is many steps wide, so the spread that came down stays.
            assert abs(float(found.mean()) - 0.3) < 0.03
            assert 0.1 < float(found.std()) < 0.4


def test_metropolis_makes_large_steps_right_and_its_absence_does_not() -> None:
    """At one level, with a step of nearly the largest that is stable: a check of the energy's line integral."""
    torch.manual_seed(1)
    deviations = {}
    for metropolis in (True, False):
        place = math.sqrt(1.0 + 0.2**2) * torch.randn(4000, 1, 1, 1) + 0.3
        found = hamiltonian(gaussian_score, place, [1.0] * 40, leapfrog_steps=1, step_size=1.7, metropolis=metropolis)
        deviations[metropolis] = float(found.std())
    assert abs(deviations[True] - math.sqrt(1.04)) < 0.05
    assert abs(deviations[False] - math.sqrt(1.04)) > 0.3


def test_the_flow_ends_in_the_law_of_the_data() -> None:
    torch.manual_seed(2)
    start = 0.3 + math.hypot(5.0, 0.2) * torch.randn(4000, 1, 2, 2)
    found = heun(gaussian_denoise, start, karras_sigmas(20, sigma_max=5.0, sigma_min=0.01))
    assert abs(float(found.mean()) - 0.3) < 0.02 and abs(float(found.std()) - 0.2) < 0.02


def test_levels_come_down_by_the_papers_decay_or_slower() -> None:
    levels = karras_sigmas(10, sigma_max=1.0, sigma_min=0.01, rho=-2.0)
    assert levels == pytest.approx([0.01 * (10 / m) ** 2 for m in range(1, 11)])
    found = karras_sigmas(10, sigma_max=1.0, sigma_min=0.01)
    assert found[0] == pytest.approx(1.0) and found[-1] == pytest.approx(0.01)
    assert all(slower > faster for slower, faster in zip(found[1:-1], levels[1:-1], strict=True))


def test_momenta_have_unit_energy() -> None:
    for distribution in ("gaussian", "rayleigh", "uniform"):
        torch.manual_seed(3)
        found = momenta(distribution, torch.empty(40_000))
        assert abs(float(found.mean())) < 0.02 and abs(float(found.square().mean()) - 1.0) < 0.03


# Randomised response


def test_randomised_response_keeps_itself_as_often_as_it_says() -> None:
    torch.manual_seed(4)
    vectors = torch.nn.functional.normalize(torch.randn(400, 6), dim=1)
    kept, outside = 0.0, 0
    for _ in range(50):
        uniform = torch.rand(400, 2)
        chosen = randomised_response(vectors @ vectors.T, neighbours=5, epsilon=1.0, uniform=uniform)
        kept += float((chosen == torch.arange(400)).double().mean()) / 50
        rank = ((vectors @ vectors.T) > (vectors * vectors[chosen]).sum(1, keepdim=True) + 1e-6).sum(1)
        outside += int((rank >= 5).sum())
    assert abs(kept - math.e / (math.e + 4)) < 0.02
    assert outside == 0


def second_moment(epsilon: float, *, peek: bool = False) -> Tensor:
    """E[vʳ vʳᵀ] over many pools of one record's projections; ``peek`` chooses by what the projection shows."""
    torch.manual_seed(5)
    pool = torch.randn(60_000, 8, 4)
    similarity = torch.nn.functional.cosine_similarity(pool[:, :1], pool, dim=2)
    if peek:
        similarity = pool[:, :, 0].abs()
    chosen = randomised_response(similarity, neighbours=4, epsilon=epsilon, uniform=torch.rand(60_000, 2))
    answer = pool[torch.arange(60_000), chosen]
    return answer.T @ answer / len(answer)


def test_randomised_response_is_a_no_op_in_expectation() -> None:
    """E[vʳ vʳᵀ] = 1 at every ε: so E[vʳᵀ ∇s vʳ] is the trace of ∇s, whatever ε is, and with it the gradient."""
    for epsilon in (0.01, 1.0, 10.0):
        assert float((second_moment(epsilon) - torch.eye(4)).abs().max()) < 0.03
        # Reverse test: a choice that looked at the projections' values would show.
        assert float((second_moment(epsilon, peek=True) - torch.eye(4)).abs().max()) > 0.3


def gradient_shift(*, peek: bool) -> float:
    """|mean difference|² of a network's gradients at two ε, over what chance alone would give: 1 if there is none."""
    torch.manual_seed(6)
    model = ScoreNetwork((1, 4, 4), 2, width=4)
    rows, differences = 512, []
    noisy, level, labels = torch.rand(1, 1, 4, 4).repeat(rows, 1, 1, 1), torch.ones(rows), torch.zeros(rows).long()
    for _ in range(24):
        pool = torch.randn(rows, 6, 16)
        similarity = torch.nn.functional.cosine_similarity(pool[:, :1], pool, dim=2)
        if peek:
            similarity = (pool @ noisy[0].flatten()).abs()
        uniform, gradients = torch.rand(rows, 2), []
        for epsilon in (0.01, 6.0):
            chosen = randomised_response(similarity, neighbours=3, epsilon=epsilon, uniform=uniform)
            views = (vectors.view(rows, 1, 4, 4) for vectors in (pool[:, 0], pool[torch.arange(rows), chosen]))
            loss = sliced_loss(model, noisy, level, labels, *views).mean()
            parts = torch.autograd.grad(loss, [model.net.leave.weight, model.net.enter.weight])
            gradients.append(torch.cat([part.flatten() for part in parts]))
        differences.append(gradients[0] - gradients[1])
    found = torch.stack(differences)
    return float(found.mean(0).square().sum() / (found.var(0).sum() / len(found)))


@pytest.mark.long
def test_the_expected_gradient_does_not_depend_on_the_response() -> None:
    assert 0.0 < gradient_shift(peek=False) < 3.0
    # Reverse test: a response that looked at the record would show.
    assert gradient_shift(peek=True) > 5.0


# Training


@pytest.mark.long
@pytest.mark.parametrize("response", [0.0, 1.0])
def test_the_sliced_objective_passes_replay(response: float) -> None:
    method = replace(DPPM.small(), objective="sliced", response_epsilon=response, filter_steps=0, covariance_noise=0.0)
    result = replay(method, digits(), budget=BUDGET, pairs=2)
    assert not result.findings and result.pairs == 2 and result.vacuous() == []


@pytest.mark.parametrize("line", ["first", "second"])
@pytest.mark.parametrize("all_directions", [False, True])
def test_sliced_loss_is_the_formula(line: str, all_directions: bool) -> None:
    torch.manual_seed(7)
    model = ScoreNetwork((1, 3, 3), 2, width=4).double()
    noisy, level, labels = torch.randn(2, 1, 3, 3).double(), torch.tensor([0.5, 2.0]).double(), torch.tensor([0, 1])
    projection, response = torch.randn(2, 2, 1, 3, 3).double()
    vectors = (model, noisy, level, labels, projection, response)
    found = sliced_loss(*vectors, line=line, all_directions=all_directions)
    for row in range(2):
        one = slice(row, row + 1)

        def flat(place: Tensor, one: slice = one) -> Tensor:
            return model.score(place.view(1, 1, 3, 3), level[one], labels[one]).flatten()

        slopes = torch.autograd.functional.jacobian(flat, noisy[row].flatten())
        answer, other, score = response[row].flatten(), projection[row].flatten(), flat(noisy[row].flatten())
        squared = score.square().sum() if all_directions else (other @ score).square()
        expected = (other if line == "first" else answer) @ slopes @ answer + squared / 2
        torch.testing.assert_close(found[row], level[row] ** 2 * expected / 9)
    difference = sliced_loss(*vectors, derivative="difference", line=line, all_directions=all_directions)
    torch.testing.assert_close(difference, found, rtol=0.02, atol=0.02)
    assert not torch.equal(difference, found)


@pytest.mark.long
def test_the_start_knows_means_and_counts_and_covariances() -> None:
    method = replace(
        DPPM.small(), sampling_rate=0.5, mean_clip_rms=1.0, sigma_data=0.9, frequencies=6, learning_rate=0.0
    )
    release = method.fit(digits(200), Budget(300.0, 1e-5), seed=0)
    gaussians = release.model.generator.gaussians
    upright, lying = (gaussians.means[:, 0] + 1) / 2
    assert float(upright[:, 5:7].mean()) > 0.7 > 0.5 > float(upright[2:10, :3].mean())
    assert float(lying[5:7].mean()) > 0.7
    assert release.card.class_counts == pytest.approx([100, 100], abs=15)
    # The bars do not move; all that varies is a little noise in the background.
    assert float(gaussians.variances.max()) < 0.2 < method.sigma_data**2


@pytest.mark.long
def test_the_label_filter_tells_upright_from_lying_and_rejects_the_rest() -> None:
    method = replace(DPPM.small(), sampling_rate=0.5, filter_steps=20, max_rejections=5)
    release = method.fit(digits(200), Budget(100.0, 1e-5), seed=0)
    label_filter = release.model.label_filter
    images, labels = torch.as_tensor(digits()._pixels).float() / 255, torch.as_tensor(digits()._labels)
    assert float((label_filter(images).argmax(1) == labels).double().mean()) > 0.9
    agreed = []
    for max_rejections in (0, 5):
        release.method = replace(method, max_rejections=max_rejections)
        drawn, wanted = release.sample(200, seed=1)
        agreed.append(float((label_filter(torch.as_tensor(drawn) / 255).argmax(1).numpy() == wanted).mean()))
    assert agreed[1] > agreed[0] or agreed[0] == 1.0


@pytest.mark.long
def test_training_lowers_the_loss_and_the_average_follows() -> None:
    options = {"filter_steps": 0, "covariance_noise": 0.0, "mean_noise": 1000.0}
    method = replace(DPPM.small(), steps=40, learning_rate=0.01, clip_norm=0.1, ema_decay=0.8, **options)  # type: ignore[arg-type]
    images, labels = (torch.as_tensor(a) for a in (digits()._pixels, digits()._labels))
    clean = 2.0 * images.float() / 255 - 1
    trained = method.fit(digits(), Budget(1000.0, 1e-5), seed=0).model
    fresh = method.build((1, 12, 12), 2)
    fresh.gaussians.load_state_dict(trained.gaussians.state_dict())

    def error(model: ScoreNetwork) -> float:
        torch.manual_seed(0)
        level = torch.full((len(clean),), 0.5)
        noisy = clean + 0.5 * torch.randn_like(clean)
        with torch.no_grad():
            return float((model.denoise(noisy, level, labels) - clean).square().mean())

    assert error(trained) < 0.8 * error(fresh)


def test_half_precision_keeps_the_clip() -> None:
    torch.manual_seed(8)
    method, half = replace(DPPM.small(), clip_norm=0.02), Performance(dtype=torch.bfloat16)
    model = method.build((1, 12, 12), 2).generator
    images, labels = torch.as_tensor(digits()._pixels).float() / 255, torch.as_tensor(digits()._labels)
    ids = torch.arange(16) // 2
    draws = Randomness(0).draws(ids, torch.arange(16) % 2, "test")
    batch = Batch(images[ids], labels[ids], draws, torch.full((8, 2), 0.5))
    whole = clipped_sum(model, method.loss, batch, method.clip_norm, performance=half)
    for unit in range(8):
        others = batch.select((torch.arange(8) != unit).nonzero()[:, 0])
        rest = clipped_sum(model, method.loss, others, method.clip_norm, performance=half)
        moved = math.sqrt(sum(float((whole[name] - rest[name]).square().sum()) for name in whole))
        assert 0.9 * method.clip_norm < moved <= method.clip_norm
    exact = clipped_sum(model, method.loss, batch, method.clip_norm)
    assert any(not torch.equal(whole[name], exact[name]) for name in whole)


def test_any_batch_size_and_both_samplers() -> None:
    release = DPPM.small().fit(digits(), BUDGET, seed=0)
    for options in (
        {},
        {"sampler": "heun"},
        {"momentum_distribution": "uniform", "metropolis": False},
        {"sampling_steps": 1},
    ):
        release.method = replace(DPPM.small(), **options)  # type: ignore[arg-type]
        assert release.sample(7, batch=3).images.shape == (7, 1, 12, 12)


def test_wrong_parameters_are_refused() -> None:
    for wrong in (
        {"objective": "flow"},
        {"sampler": "euler"},
        {"momentum_distribution": "cauchy"},
        {"response_epsilon": 1.0},
        {"neighbours": 1},
        {"rho": 0.0},
        {"sigma_min": 20.0},
    ):
        with pytest.raises(ValueError, match=r"must be one of|response|rho|sigma_min"):
            DPPM(**wrong)  # type: ignore[arg-type]


# As published


@pytest.mark.parametrize("options", [{}, {"loss_line": "first", "projections": "one", "derivative": "forward"}])
def test_the_published_form_needs_raw_records_and_says_so(options: dict[str, Any]) -> None:
    method = replace(DPPMPublished.small(), **options)
    with pytest.raises(BudgetExceeded, match="NoGuarantee"):
        method.fit(digits(), BUDGET)
    release = method.fit(digits(), NoGuarantee(), seed=0)
    assert release.card.guarantee == "no guarantee"
    assert all(torch.isfinite(tensor).all() for tensor in release.model.state_dict().values())
    assert release.sample(5).images.shape == (5, 1, 12, 12)
    assert release.card.claim is not None and release.card.claim.epsilon == 1.0 and not release.card.claim.delta


def test_replay_flags_the_published_form() -> None:
    """Its randomised response asks nothing of the data: the release moves, and no answer accounts for it."""
    result = replay(DPPMPublished.small(), digits(), budget=NoGuarantee(), pairs=2)
    assert {finding.rule for finding in result.findings} == {"same release", "same samples"}
    assert result.pairs == 2 and result.movement == {}
