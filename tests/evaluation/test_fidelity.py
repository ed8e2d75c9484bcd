"""Distances of features against independent formulas, and on samples that collapsed."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn
from torchmetrics.image.fid import FrechetInceptionDistance

from sfumato.evaluation import features as fidelity
from sfumato.evaluation.features import FeatureNetwork, extract, frechet_distance, kernel_distance, manifold, statistics


class Flat(nn.Module):
    num_features = 24

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


@pytest.mark.parametrize("rows", [12, 400], ids=["fewer rows than dimensions", "more"])
def test_frechet_distance_equals_torchmetrics(rows: int) -> None:
    random = torch.Generator().manual_seed(1)
    mix = torch.randn(24, 24, generator=random)
    first = torch.randn(rows, 24, generator=random) @ mix
    second = torch.randn(rows + 3, 24, generator=random) + 0.5
    oracle = FrechetInceptionDistance(feature=Flat(), normalize=False).set_dtype(torch.float64)
    oracle.update(first.double(), real=True)
    oracle.update(second.double(), real=False)
    expected = float(oracle.compute())
    assert frechet_distance(statistics(first), statistics(second)) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(statistics(second), statistics(first)) == pytest.approx(expected, rel=1e-6)


def test_frechet_distance_of_a_set_to_itself_and_to_its_shift() -> None:
    rows = torch.randn(300, 16, generator=torch.Generator().manual_seed(2))
    shift = torch.zeros(16)
    shift[0] = 3.0
    assert frechet_distance(statistics(rows), statistics(rows)) == pytest.approx(0.0, abs=1e-6)
    assert frechet_distance(statistics(rows), statistics(rows + shift)) == pytest.approx(9.0, rel=1e-5)


def test_kid_is_repeatable_near_zero_for_equal_laws_and_draws_nothing_from_outside() -> None:
    random = torch.Generator().manual_seed(3)
    first, second = (statistics(torch.randn(200, 16, generator=random)) for _ in range(2))
    far = statistics(torch.randn(200, 16, generator=random) + 1)
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    near = kernel_distance(first, second, subsets=20)
    assert near == kernel_distance(first, second, subsets=20)
    assert torch.equal(torch.rand(2), expected)
    assert near[1] > 0
    assert abs(near[0]) < 5 * near[1] < kernel_distance(first, far, subsets=20)[0]


def test_manifold_measures_against_a_plain_loop() -> None:
    random = np.random.default_rng(4)
    real, fake, k = random.normal(size=(40, 3)), 1.5 * random.normal(size=(30, 3)), 3
    radius = {"real": [], "fake": []}  # type: dict[str, list[float]]
    for name, rows in (("real", real), ("fake", fake)):
        for row in rows:
            radius[name].append(sorted(np.linalg.norm(rows - row, axis=1))[k])
    between = np.linalg.norm(fake[:, None] - real[None], axis=2)
    within = between <= np.array(radius["real"])
    found = manifold(torch.tensor(real), torch.tensor(fake), neighbours=k)
    assert found.precision == pytest.approx(within.any(axis=1).mean())
    assert found.density == pytest.approx(within.sum() / (k * len(fake)))
    assert found.coverage == pytest.approx(within.any(axis=0).mean())
    assert found.recall == pytest.approx((between <= np.array(radius["fake"])[:, None]).any(axis=0).mean())
    assert 0 < found.precision < 1


def test_collapsed_samples_give_numbers_and_not_nan() -> None:
    real = torch.randn(64, 16, generator=torch.Generator().manual_seed(5))
    same = real[:1].expand(64, -1)
    values = list(asdict(manifold(real, same)).values())
    values += [
        frechet_distance(statistics(real), statistics(same)),
        *kernel_distance(statistics(real), statistics(same)),
    ]
    assert all(math.isfinite(value) for value in values)
    assert manifold(real, same).precision == 1.0
    assert manifold(real, same).recall <= 1 / 64
    assert frechet_distance(statistics(same), statistics(same)) == pytest.approx(0.0, abs=1e-6)


class Means(nn.Module):
    """Row means with a large common part, on which a careless covariance loses its digits."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean(dim=(1, 3)) + 1000


@pytest.mark.parametrize("count", [100, 101, 3000], ids=["rows suffice", "one more", "several parts"])
def test_statistics_of_many_images_never_hold_all_features(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, size=(count, 1, 8, 8), dtype=np.uint8)
    network = FeatureNetwork("means", "", 8, "none", "nothing", Means())
    monkeypatch.setattr(fidelity, "ROWS_KEPT", 100)
    features, held = extract(network, pixels), []

    def watched(network: FeatureNetwork, pixels: np.ndarray, **options: object) -> torch.Tensor:
        held.append(len(pixels))
        return extract(network, pixels, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(fidelity, "extract", watched)
    seen: list[tuple[int, int]] = []
    found = fidelity.feature_statistics(network, pixels, progress=lambda task, done, total: seen.append((done, total)))
    assert max(held) <= 512 and sum(held) == count
    assert seen[-1] == (count, count)
    assert found.count == count and torch.equal(found.rows, features[:100])
    torch.testing.assert_close(found.mean, features.double().mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.covariance, features.double().T.cov(), rtol=1e-9, atol=1e-9)
