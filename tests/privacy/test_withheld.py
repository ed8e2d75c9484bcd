"""What memory or a disk refuses while records are sampled, fetched or remembered is not told with sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from privacy.test_curator import collection, curator, train
from sfumato.privacy import Budget, Randomness
from sfumato.privacy import records as states
from sfumato.privacy.records import PrivateRecords
from sfumato.privacy.step import PrivateRowsError


def refuses(*_: Any, **__: Any) -> Any:
    raise MemoryError("Unable to allocate 3 arrays with shape (40, 1, 4, 4)")


def mean(images: Tensor, labels: Tensor, random: object) -> Tensor:
    return images.flatten(1)


@pytest.mark.parametrize("internal", [False, True])
def test_an_array_that_records_do_not_fit_into(monkeypatch: pytest.MonkeyPatch, internal: bool) -> None:
    monkeypatch.setattr(PrivateRecords, "_fetch", refuses)
    asked, _ = curator(train(sum=1.0), private=collection(), internal=internal)
    kind = MemoryError if internal else PrivateRowsError
    with pytest.raises(kind) as raised:
        next(asked.steps("train")).noisy_sum("sum", mean, clip_norm=1.0)
    assert ("40" in str(raised.value)) == internal and (internal or raised.value.__context__ is None)


@pytest.mark.parametrize("internal", [False, True])
def test_coins_and_an_index_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch, internal: bool) -> None:
    kind = MemoryError if internal else PrivateRowsError
    asked, ledger = curator(train(sum=1.0), private=collection(), internal=internal)
    monkeypatch.setattr(Randomness, "coins", refuses)
    with pytest.raises(kind) as raised:
        next(asked.steps("train"))
    assert ("40" in str(raised.value)) == internal and not ledger.events()
    monkeypatch.setattr(np, "argsort", refuses)
    with pytest.raises(kind) as raised:
        curator(train(sum=1.0), private=collection(True), budget=Budget(5.0, 1e-5, "person"), internal=internal)
    assert ("40" in str(raised.value)) == internal


def test_state_that_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = curator(train(sum=1.0), private=collection())
    monkeypatch.setattr(states.torch, "full", refuses)
    with pytest.raises(PrivateRowsError, match="MemoryError was raised") as raised:
        asked.private_state("memory", (2,))
    assert "40" not in str(raised.value)
    monkeypatch.undo()
    assert asked.private_state("memory", (2,))._values.dtype == torch.float32
