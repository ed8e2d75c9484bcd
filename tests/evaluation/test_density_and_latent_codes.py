"""Out-of-distribution scores, likelihoods, sparsity and MMD, on cases with a known answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from sfumato.evaluation.density import log_likelihood, out_of_distribution_auroc
from sfumato.evaluation.latent_codes import CAUCHY_SCALES, hoyer_sparsity, maximum_mean_discrepancy


def test_auroc_equals_scikit_learn_with_ties_and_orders_perfect_cases() -> None:
    random = np.random.default_rng(0)
    inside, outside = random.normal(1, 1, 300).round(1), random.normal(0, 1, 200).round(1)
    expected = roc_auc_score(np.repeat([1, 0], [300, 200]), np.concatenate([inside, outside]))
    assert out_of_distribution_auroc(inside, outside) == pytest.approx(expected)
    assert out_of_distribution_auroc(np.ones(3), np.zeros(2)) == 1.0
    assert out_of_distribution_auroc(np.zeros(3), np.full(2, -np.inf)) == 1.0
    assert out_of_distribution_auroc(np.zeros(3), np.zeros(2)) == 0.5


def test_nan_densities_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        out_of_distribution_auroc(np.array([0.0, np.nan]), np.zeros(2))
    with pytest.raises(ValueError, match="at least one"):
        out_of_distribution_auroc(np.zeros(0), np.zeros(2))


def test_log_likelihood_in_bits_and_with_impossible_images() -> None:
    found = log_likelihood(np.full(5, -8 * math.log(2)), dimensions=8)
    assert found["bits_per_dimension"] == pytest.approx(1.0)
    broken = log_likelihood(np.array([0.0, -np.inf]), dimensions=8)
    assert (broken["mean"], broken["impossible"]) == (None, 1)


def test_hoyer_is_one_for_one_dimension_zero_for_all_alike_and_scale_free() -> None:
    signs = torch.tensor([[1.0], [-1.0]]).repeat(8, 1)
    assert hoyer_sparsity(signs.expand(-1, 10)) == pytest.approx(0.0, abs=1e-12)
    assert hoyer_sparsity(signs.expand(-1, 10) * torch.arange(1, 11)) == pytest.approx(0.0, abs=1e-12)
    single = torch.eye(10).repeat(4, 1)
    assert hoyer_sparsity(single) == pytest.approx(1.0)
    assert hoyer_sparsity(torch.zeros(6, 10)) == 0.0


def test_mmd_equals_a_plain_loop_and_is_near_zero_for_equal_laws() -> None:
    random = np.random.default_rng(1)
    first, second = random.normal(size=(12, 3)), random.normal(1, 1, size=(9, 3))

    def kernel(x: np.ndarray, y: np.ndarray) -> float:
        return sum(scale / (scale + (a - b) ** 2) for a, b in zip(x, y, strict=True) for scale in CAUCHY_SCALES)

    within = [
        np.mean([kernel(rows[i], rows[j]) for i in range(len(rows)) for j in range(len(rows)) if i != j])
        for rows in (first, second)
    ]
    expected = within[0] + within[1] - 2 * np.mean([kernel(x, y) for x in first for y in second])
    found = maximum_mean_discrepancy(torch.tensor(first), torch.tensor(second), microbatch_size=5)
    assert found == pytest.approx(expected)
    same = torch.tensor(random.normal(size=(400, 3)))
    assert abs(maximum_mean_discrepancy(same[:200], same[200:])) < 0.1 * found
