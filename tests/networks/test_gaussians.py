"""Class Gaussians: the linear estimate against the textbook, draws against the covariance, noise against its edge."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sfumato.networks.mixture import ClassGaussians


def known(shape: tuple[int, int, int] = (1, 6, 5)) -> tuple[ClassGaussians, Tensor]:
    """Two classes of random covariance in the slow waves, and the covariances over the pixels."""
    torch.manual_seed(0)
    gaussians = ClassGaussians(shape, 2, frequencies=3, sigma_data=0.5).double()
    size = gaussians.variances.shape[1]
    gaussians.means.normal_()
    gaussians.variances.copy_(torch.rand(2, size) + 0.2)
    gaussians.floor.copy_(torch.tensor([0.1, 0.3]))
    for label in range(2):
        gaussians.axes[label] = torch.linalg.qr(torch.randn(size, size).double()).Q
    waves = gaussians.analyse(torch.eye(math.prod(shape)).double().view(-1, *shape)).T
    pixels = torch.eye(math.prod(shape)).double()
    covariances = []
    for label in range(2):
        slow = gaussians.axes[label] @ gaussians.variances[label].diag() @ gaussians.axes[label].T
        covariances.append(waves.T @ slow @ waves + gaussians.floor[label] * (pixels - waves.T @ waves))
    return gaussians, torch.stack(covariances)


def test_waves_there_and_back() -> None:
    gaussians = ClassGaussians((3, 8, 6), 1, frequencies=9, sigma_data=0.5)
    images = torch.randn(2, 3, 8, 6)
    torch.testing.assert_close(gaussians.synthesise(gaussians.analyse(images)), images)


def test_the_estimate_is_the_best_linear_one_and_knows_its_error() -> None:
    gaussians, covariances = known()
    noisy, labels = torch.randn(4, 1, 6, 5).double(), torch.tensor([0, 1, 1, 0])
    level = torch.tensor([0.1, 0.5, 2.0, 9.0]).double()
    clean, left = gaussians.estimate(noisy, level, labels)
    for row, label in enumerate(labels):
        mean, noise = gaussians.means[label].flatten(), float(level[row]) ** 2 * torch.eye(30).double()
        gain = covariances[label] @ torch.linalg.inv(covariances[label] + noise)
        torch.testing.assert_close(clean[row].flatten(), mean + gain @ (noisy[row].flatten() - mean))
        error = (covariances[label] - gain @ covariances[label]).trace() / 30
        torch.testing.assert_close(left[row], error.sqrt())


def test_draws_have_mean_and_covariance_of_the_class() -> None:
    gaussians, covariances = known()
    drawn = gaussians.draw(torch.ones(40_000, dtype=torch.int64), 0.4).flatten(1)
    expected = covariances[1] + 0.16 * torch.eye(30).double()
    assert float((drawn.mean(0) - gaussians.means[1].flatten()).abs().max()) < 0.03
    assert float((drawn.T.cov() - expected).abs().max()) < 0.04


def test_covariances_come_back_from_noisy_sums_and_noise_alone_does_not() -> None:
    torch.manual_seed(1)
    gaussians = ClassGaussians((1, 16, 16), 2, frequencies=8, sigma_data=0.5)
    size, count, noise = 64, 1000.0, 400.0
    true = torch.zeros(size)
    true[:3] = torch.tensor([40.0, 25.0, 15.0])
    sums = torch.stack([count * true.diag(), torch.zeros(size, size)])
    draw = noise * torch.randn(2, size, size) / math.sqrt(2.0)
    upper = draw.triu(1)
    sums = sums + upper + upper.transpose(1, 2) + math.sqrt(2.0) * draw * torch.eye(size)
    gaussians.fit_covariances(sums, torch.tensor([500.0, -50.0]), torch.tensor([count, count]), noise_std=noise)
    found = gaussians.variances.sort(dim=1, descending=True).values
    torch.testing.assert_close(found[0, :3], true[:3], rtol=0.15, atol=0.0)
    # What noise alone put there is spread out, and stays far below what the noise's own eigenvalues would say.
    edge = 2.0 * noise / math.sqrt(2.0) / count * math.sqrt(size)
    assert float(found[0, 3]) < 0.2 * edge and float(found[1, 1]) < 0.2 * edge
    assert float(gaussians.floor.min()) > 0.0
