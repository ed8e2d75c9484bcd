"""EDM: the preconditioning against its equations, and the sampler against a Gaussian of which everything is known."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.networks.edm import Denoiser, UNet, heun, log_normal_sigma

MEAN, DEVIATION = 0.3, 0.2


def gaussian_denoise(noisy: Tensor, sigma: Tensor) -> Tensor:
    """The posterior mean of data N(MEAN, DEVIATION²)."""
    level = sigma.view(-1, 1, 1, 1).square()
    return (DEVIATION**2 * noisy + level * MEAN) / (DEVIATION**2 + level)


def sigmas(count: int) -> list[float]:
    return torch.logspace(math.log10(5.0), -2.0, count).tolist()


def test_the_loss_is_the_error_of_the_clean_estimate_in_units_of_c_out() -> None:
    torch.manual_seed(0)
    model = Denoiser(UNet((1, 8, 8), 2, width=4))
    clean, noise, sigma = torch.rand(5, 1, 8, 8), torch.randn(5, 1, 8, 8), torch.rand(5) + 0.1
    labels = torch.tensor([0, 1, 0, 1, 0])
    estimate = model(clean + sigma.view(-1, 1, 1, 1) * noise, sigma, labels)
    out = sigma * 0.5 / (sigma.square() + 0.25).sqrt()
    expected = (estimate - clean).square().flatten(1).mean(1) / out.square()
    assert torch.allclose(model.loss(clean, noise, sigma, labels), expected, rtol=1e-4)


def test_input_and_target_have_unit_variance_at_every_noise_level() -> None:
    torch.manual_seed(1)
    model = Denoiser(UNet((1, 8, 8), 1, width=4))
    clean = 0.5 * torch.randn(4000, 1, 8, 8)
    for level in (0.01, 0.5, 10.0):
        sigma = torch.full((4000,), level)
        skip, out, scale = model.scales(sigma)
        noisy = clean + level * torch.randn_like(clean)
        assert abs(float((scale * noisy).std()) - 1.0) < 0.02
        assert abs(float(((clean - skip * noisy) / out).std()) - 1.0) < 0.02


def test_noise_levels_follow_their_law_and_stay_finite() -> None:
    levels = log_normal_sigma((torch.arange(10_000) + 0.5) / 10_000, mean=-0.7, deviation=1.2)
    assert abs(float(levels.log().mean()) + 0.7) < 0.01 and abs(float(levels.log().std()) - 1.2) < 0.01
    ends = log_normal_sigma(torch.tensor([0.0, 1.0]), mean=-0.7, deviation=1.2)
    assert torch.isfinite(ends).all() and (ends > 0).all()


def test_the_sampler_ends_in_the_law_of_the_data() -> None:
    for churn in [0.0, 10.0]:
        torch.manual_seed(2)
        found = heun(gaussian_denoise, 5.0 * torch.randn(4000, 1, 2, 2), sigmas(40), churn=churn)
        assert abs(float(found.mean()) - MEAN) < 0.02
        assert abs(float(found.std()) - DEVIATION) < 0.03


def test_without_churn_nothing_is_drawn() -> None:
    start = 5.0 * torch.randn(10, 1, 2, 2)
    plain = heun(gaussian_denoise, start, sigmas(12))
    assert torch.equal(heun(gaussian_denoise, start, sigmas(12), churn=0.0), plain)
    assert not torch.allclose(heun(gaussian_denoise, start, sigmas(12), churn=5.0), plain, atol=1e-3)
