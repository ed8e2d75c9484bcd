"""Out-of-distribution scores and sparsity, on cases with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from sfumato.audit.membership import out_of_distribution_auroc
from sfumato.experiments.measures import hoyer_sparsity


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


def test_hoyer_is_one_for_one_dimension_zero_for_all_alike_and_scale_free() -> None:
    signs = torch.tensor([[1.0], [-1.0]]).repeat(8, 1)
    assert hoyer_sparsity(signs.expand(-1, 10)) == pytest.approx(0.0, abs=1e-12)
    assert hoyer_sparsity(signs.expand(-1, 10) * torch.arange(1, 11)) == pytest.approx(0.0, abs=1e-12)
    single = torch.eye(10).repeat(4, 1)
    assert hoyer_sparsity(single) == pytest.approx(1.0)
    assert hoyer_sparsity(torch.zeros(6, 10)) == 0.0
