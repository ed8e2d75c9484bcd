"""A machine of which every step takes as long as its operations say, however busy the real one is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sfumato.methods.parts import time_budget
from sfumato.training.profiling import Work, rehearse

OPERATIONS_PER_SECOND = 2e10


def steady_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are rehearsed, and the clock's seconds replaced."""

    def rehearsed(method: Any, **options: Any) -> Work:
        work = rehearse(method, **options)
        parts = tuple(replace(part, seconds=part.operations / OPERATIONS_PER_SECOND) for part in work.parts)
        return replace(work, parts=parts)

    monkeypatch.setattr(time_budget, "rehearse", rehearsed)
