"""``sfumato train --hold-out``: what is held out is not trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.commands import run_here
from cli.test_train import SMALL
from sfumato.data import Images, PrivateImages, read
from sfumato.data.holdout import HoldOut


def test_held_out_images_are_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the division is drawn: with probability 6e-12 five images or fewer of 60 are held out."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(60) % 2)
    trained_on: list[Images] = []
    from_images = PrivateImages.from_images

    def watched(images: Images, **options: Any) -> PrivateImages:
        trained_on.append(images)
        return from_images(images, **options)

    monkeypatch.setattr(PrivateImages, "from_images", watched)
    words = ["train", str(tmp_path / "data.npz"), "--method", "dp-merf", "--epsilon", "3", "--classes", "2", *SMALL]
    assert run_here(monkeypatch, *words, "--hold-out", "0.5", "--out", str(tmp_path / "run"), "--quiet") == 0
    division = HoldOut.load(tmp_path / "run" / "internal" / "hold_out.json")
    kept, held_out = division.split(read(tmp_path / "data.npz", classes=2))
    (found,) = trained_on
    assert len(held_out.labels) > 5 and np.array_equal(found.pixels, kept.pixels)
    assert not {image.tobytes() for image in held_out.pixels} & {image.tobytes() for image in found.pixels}


def test_under_a_guarantee_per_image_no_image_decides_for_others_of_its_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image is added or removed, so that one image at most may join or leave those that are trained on."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=pixels, labels=np.arange(60) % 2, persons=np.arange(60) % 20)
    words = ["train", str(tmp_path / "data.npz"), "--method", "dp-merf", "--epsilon", "3", "--classes", "2", *SMALL]
    words += ["--unit", "image", "--hold-out", "0.5", "--out", str(tmp_path / "run"), "--quiet"]
    assert run_here(monkeypatch, *words) == 0
    division = HoldOut.load(tmp_path / "run" / "internal" / "hold_out.json")
    images = read(tmp_path / "data.npz", classes=2)
    assert images.persons is not None
    trained_on = {image.tobytes() for image in division.split(images)[0].pixels}
    for row in range(20):
        others = np.delete(np.arange(60), row)
        fewer = replace(
            images,
            pixels=images.pixels[others],
            labels=np.asarray(images.labels)[others],
            persons=np.asarray(images.persons)[others],
        )
        now = {image.tobytes() for image in division.split(fewer)[0].pixels}
        assert now == trained_on - {images.pixels[row].tobytes()}
