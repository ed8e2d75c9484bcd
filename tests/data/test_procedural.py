"""Procedural images: pixels in range, the same for the same seed, of four kinds that differ."""

from __future__ import annotations

import pytest
import torch

from sfumato.data import procedural
from sfumato.data.procedural import dead_leaves, procedural_images, shapes, strokes, textures

CPU = torch.device("cpu")


def test_images_lie_between_0_and_1_and_repeat_for_a_seed() -> None:
    for shape in [(1, 28, 28), (3, 20, 33)]:
        drawn = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            drawn.append(procedural_images(23, shape=shape))
        assert drawn[0].shape == (23, *shape)
        assert float(drawn[0].min()) >= 0.0 and float(drawn[0].max()) <= 1.0
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
        assert float(drawn[0].flatten(1).std(1).min()) > 0.0


def test_no_images_are_legal() -> None:
    assert procedural_images(0, shape=(1, 28, 28)).shape == (0, 1, 28, 28)


def test_strokes_are_dark_with_bright_ink_and_textures_fill_the_image() -> None:
    torch.manual_seed(0)
    ink = strokes(64, (1, 28, 28), CPU)
    assert float((ink < 0.05).float().mean()) > 0.5 and float(ink.flatten(1).max(1).values.min()) > 0.3
    texture = textures(64, (1, 28, 28), CPU)
    assert float((texture < 0.05).float().mean()) < 0.5


def test_strokes_have_no_gaps_in_large_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """They look as if drawn with many more pieces; discs at points of the curve would be a string of beads."""
    drawn = []
    for segments in (procedural._SEGMENTS, 200):
        monkeypatch.setattr(procedural, "_SEGMENTS", segments)
        torch.manual_seed(0)
        drawn.append(strokes(16, (1, 128, 128), CPU))
    assert float((drawn[0] - drawn[1]).abs().max()) < 0.35 and float((drawn[0] - drawn[1]).abs().mean()) < 5e-4


def test_dead_leaves_are_flat_with_sharp_edges() -> None:
    torch.manual_seed(0)
    step = (dead_leaves(64, (1, 56, 56), CPU).diff(dim=3)).abs()
    assert 0.5 < float((step == 0).float().mean()) < 0.98


def test_half_of_the_shapes_are_symmetric_up_to_shading() -> None:
    torch.manual_seed(0)
    dark = shapes(200, (1, 28, 28), CPU) < 0.02
    symmetric = (dark == dark.flip(3)).flatten(1).float().mean(1) > 0.98
    assert 0.4 < float(symmetric.float().mean()) < 0.8
