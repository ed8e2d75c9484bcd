"""Reference statistics are found by content, and belong to their owner alone."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sfumato.evaluation import features as fidelity
from sfumato.evaluation.features import FeatureNetwork, cached_statistics, content_key


class Counting(nn.Module):
    """Row means as features; counts the images it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        return images.float().mean(dim=(1, 3))


def network() -> FeatureNetwork:
    return FeatureNetwork("rows", "sha1:0", 8, "none", "nothing", Counting())


def images(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(20, 1, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize("rows_kept", [10_000, 6], ids=["rows suffice", "covariance stored"])
def test_equal_content_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_kept: int) -> None:
    monkeypatch.setattr(fidelity, "ROWS_KEPT", rows_kept)
    used = network()
    first = cached_statistics(used, images(), folder=tmp_path)
    again = cached_statistics(used, images().copy(), folder=tmp_path)
    assert isinstance(used.module, Counting)
    assert used.module.seen == 20
    assert (again.count, len(again.rows)) == (20, min(20, rows_kept))
    torch.testing.assert_close(first.covariance, again.covariance)
    torch.testing.assert_close(first.mean, again.mean)
    changed = images()
    changed[3, 0, 2, 2] ^= 1
    cached_statistics(used, changed, folder=tmp_path)
    assert used.module.seen == 40
    cached_statistics(used, images(), folder=None)
    assert used.module.seen == 60


def test_the_key_depends_on_pixels_shape_and_network() -> None:
    pixels = images()
    keys = {
        content_key(pixels, network()),
        content_key(pixels.reshape(20, 1, 4, 16), network()),
        content_key(pixels[::-1], network()),
        content_key(pixels, replace(network(), hash="sha1:1")),
        content_key(pixels, replace(network(), resize="other")),
    }
    assert len(keys) == 5
    assert content_key(pixels[::-1][::-1], network()) in keys


def test_only_the_owner_can_read_the_cache(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "cache"
    cached_statistics(network(), images(), folder=folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (entry,) = folder.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
