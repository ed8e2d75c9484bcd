"""Learning-rate schedules."""

from __future__ import annotations

import math


def cosine_decay(progress: float, *, final: float) -> float:
    """The factor on the learning rate when ``progress`` (0 to 1) of the training is done: from 1 down to ``final``."""
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
