"""The table of twins: what replay cannot see is caught by another audit, and the control by none."""

from __future__ import annotations

import pytest

from sfumato.audit.broken_methods import Normalised, OffGrid, SeededNoise, SoundTwin
from sfumato.audit.detection_matrix import judge
from sfumato.privacy import Budget

BUDGET = Budget(3.0, 1e-5)


@pytest.mark.parametrize("twin", [SeededNoise, OffGrid])
def test_silent_twins_are_caught_by_listening(twin: type[SoundTwin]) -> None:
    verdict = judge(twin, budget=BUDGET, pairs=1)
    assert verdict.caught and verdict.noise and not verdict.replay and verdict.refused is None


def test_a_refusal_at_the_door_is_a_catch() -> None:
    verdict = judge(Normalised, budget=BUDGET, pairs=1)
    assert verdict.caught and verdict.refused is not None and "BatchNorm" in verdict.refused


def test_the_control_is_caught_by_none() -> None:
    verdict = judge(SoundTwin, budget=BUDGET, pairs=2)
    assert not verdict.caught and verdict.measured is not None and verdict.to_json()["caught"] is False
