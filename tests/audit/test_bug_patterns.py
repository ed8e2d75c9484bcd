"""The seven bug patterns that Re:cord-play (Cebere et al., PETS 2026) found in libraries, each as a method here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from broken_methods import MISTAKES, ControlMethod, EarlyStopping, HalvedNoise, TwoClips
from sfumato.audit.replay import replay
from sfumato.privacy import Budget
from sfumato.privacy.randomness import Draws
from worst_case import worst_case_images

BUDGET = Budget(3.0, 1e-5)


def of(mistake: str) -> type[ControlMethod]:
    return next(one.direct for one in MISTAKES if one.name == mistake)


PATTERNS: dict[str, tuple[type[ControlMethod], str]] = {
    "buggy mean": (of("division by len(data)"), "same release"),
    "domain inference": (of("a width inferred from the labels"), "refused"),
    "double spending": (of("one noise for several answers"), "same queries"),
    "noise miscalibration": (HalvedNoise, "noise"),
    "sensitivity miscalibration": (TwoClips, "movement"),
    "data-dependent control flow": (EarlyStopping, "same queries"),
}
"""The pattern, a method that has it, and the rule of replay that it breaks."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_pattern_is_found(pattern: str) -> None:
    method, rule = PATTERNS[pattern]
    found = replay(method.small(), worst_case_images(12, size=8), budget=BUDGET, pairs=12)
    assert rule in found.rules, found.findings


@dataclass(frozen=True)
class NotANumber(ControlMethod):
    """The loss of a white image is not a number."""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        white = images.flatten(1).amin(1) == 1.0
        return super().loss(model, images, labels, random) * torch.where(white, torch.nan, 1.0)


def test_an_injected_nan_moves_no_sum_and_no_release() -> None:
    """The seventh pattern: the clip bounds what is not a number as well, so that there is nothing to find."""
    images = worst_case_images(12, size=8)
    pixels = np.asarray(images._pixels)
    assert np.isnan(pixels).any() and (pixels == 1.0).all(axis=(1, 2, 3)).any(), "the images have both"
    found = replay(NotANumber.small(), images, budget=BUDGET, pairs=12)
    assert not found.findings and max(found.movement.values()) <= 1 + 1e-6
