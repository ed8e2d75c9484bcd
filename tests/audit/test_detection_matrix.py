"""What replay cannot see is detected by another audit, and no audit flags the control method."""

from __future__ import annotations

import pytest

from sfumato.audit.broken_methods import ControlMethod, Normalised, OffGrid, SeededNoise
from sfumato.audit.detection_matrix import detect
from sfumato.privacy import Budget

BUDGET = Budget(3.0, 1e-5)


@pytest.mark.parametrize("method", [SeededNoise, OffGrid])
def test_what_moves_no_sum_is_detected_by_the_noise_audit(method: type[ControlMethod]) -> None:
    detection = detect(method, budget=BUDGET, pairs=1)
    assert detection.caught and detection.noise and not detection.replay and detection.refused is None


def test_a_refusal_counts_as_detection() -> None:
    detection = detect(Normalised, budget=BUDGET, pairs=1)
    assert detection.caught and detection.refused is not None and "BatchNorm" in detection.refused


def test_the_control_method_is_flagged_by_none() -> None:
    detection = detect(ControlMethod, budget=BUDGET, pairs=2)
    assert not detection.caught and detection.measured is not None and detection.to_json()["caught"] is False
