"""Copies are found, and what shows private images is for the owner's eyes alone."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.evaluation.private_views import nearest_neighbours, write_view


def noise(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(count, 3, 6, 6), dtype=np.uint8)


def test_copies_are_counted_and_fresh_images_are_not() -> None:
    train, test = noise(5000, 0), noise(100, 1)
    copied = nearest_neighbours(train[[5, 7, 4999]], train, test)
    assert copied.nearest.tolist() == [5, 7, 4999]
    assert copied.summary().exact_copies == 3
    assert copied.summary().share_nearer_than_one_percent_of_test == 1.0
    fresh = nearest_neighbours(noise(100, 2), train, test).summary()
    assert fresh.exact_copies == 0
    assert fresh.share_nearer_than_one_percent_of_test < 0.1
    assert fresh.notice.startswith("INTERNAL")


def test_distance_is_the_root_mean_square_of_the_nearest() -> None:
    train, other = noise(30, 0), noise(4, 3)
    found = nearest_neighbours(other, train, other)
    plain = np.sqrt(((other[:, None].astype(float) - train[None].astype(float)) ** 2).mean(axis=(2, 3, 4))) / 255
    assert found.nearest.tolist() == plain.argmin(axis=1).tolist()
    assert found.distance == pytest.approx(plain.min(axis=1), rel=1e-5)


def test_the_view_is_a_picture_of_pairs_for_the_owner_alone(tmp_path: Path) -> None:
    train, synthetic = noise(50, 0), noise(30, 1)
    path = tmp_path / "pairs.png"
    path.write_bytes(b"")
    path.chmod(0o644)
    found = nearest_neighbours(synthetic, train, synthetic)
    write_view(path, found, synthetic=synthetic, real_train=train, pairs=25)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Image.open(path) as picture:
        assert picture.size == (20 * 6, 2 * 12)
        nearest = int(np.argmin(found.distance))
        top = np.asarray(picture)[:12, :6]
    assert (top[:6] == np.moveaxis(synthetic[nearest], 0, -1)).all()
    assert (top[6:] == np.moveaxis(train[found.nearest[nearest]], 0, -1)).all()
