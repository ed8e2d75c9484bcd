"""Exported images can be read again and never travel without what is promised about them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sfumato.data import PublicImages
from sfumato.release.export import export

FORMATS = ("folder", "npz", "parquet")
CLASSES = ("cat", "dog", "yak")
CERTIFIED: dict[str, Any] = {
    "guarantee": "certified",
    "epsilon": 1.0,
    "delta": 1e-5,
    "unit": "image",
    "sentence": "At most a factor e^ε, ε = 1.",
}
WITHOUT = {
    **CERTIFIED,
    "guarantee": "no guarantee",
    "epsilon": None,
    "delta": None,
    "sentence": "NO GUARANTEE. Beware.",
}


def _images(channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.integers(0, 256, (20, channels, 8, 8), dtype=np.uint8), np.arange(20) % 2


def _metadata(place: Path, format: str) -> tuple[str, str]:
    if format == "folder":
        with Image.open(next((place / "images" / "cat").iterdir())) as picture:
            return picture.text["guarantee"], picture.text["sentence"]
    if format == "npz":
        with np.load(place / "images.npz", allow_pickle=False) as arrays:
            return str(arrays["guarantee"]), str(arrays["sentence"])
    metadata = pq.read_schema(place / "images.parquet").metadata
    return metadata[b"guarantee"].decode(), metadata[b"sentence"].decode()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("format", FORMATS)
def test_round_trip_with_the_guarantee(tmp_path: Path, format: Any, channels: int) -> None:
    images, labels = _images(channels)
    place = export(images, labels, CLASSES, tmp_path / "out", format=format, card=CERTIFIED)
    found = PublicImages.read(place)
    order = np.argsort(labels, kind="stable") if format == "folder" else np.arange(20)
    np.testing.assert_array_equal(found.pixels, images[order])
    np.testing.assert_array_equal(found.labels, labels[order])
    assert found.classes == CLASSES
    assert json.loads((place / "card.json").read_text()) == CERTIFIED
    assert _metadata(place, format) == ("certified", CERTIFIED["sentence"])


@pytest.mark.parametrize("card", [WITHOUT, None])
@pytest.mark.parametrize("format", FORMATS)
def test_without_a_guarantee_it_takes_the_flag_and_says_so(tmp_path: Path, format: Any, card: Any) -> None:
    images, labels = _images()
    with pytest.raises(ValueError, match="allow_no_guarantee"):
        export(images, labels, CLASSES, tmp_path / "out", format=format, card=card)
    assert not any(tmp_path.iterdir())
    place = export(images, labels, CLASSES, tmp_path / "out", format=format, card=card, allow_no_guarantee=True)
    guarantee, sentence = _metadata(place, format)
    assert guarantee == "no guarantee" and sentence.startswith("NO GUARANTEE")
    assert json.loads((place / "card.json").read_text())["guarantee"] == "no guarantee"


@pytest.mark.parametrize(
    "change", [{"guarantee": "sort of"}, {"epsilon": float("inf")}, {"epsilon": None}, {"sentence": " "}]
)
def test_a_card_that_promises_nothing_definite_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        export(*_images(), CLASSES, tmp_path / "out", card={**CERTIFIED, **change})
    assert not any(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError):
        export(*_images(), CLASSES, tmp_path / "out", card=CERTIFIED)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "thesis.txt"]


def test_class_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no class folder can have"):
        export(*_images(), ("../../cat", "dog"), tmp_path / "out", card=CERTIFIED)
    assert not any(tmp_path.iterdir())
    place = export(*_images(), ("../../cat", "dog"), tmp_path / "out", format="npz", card=CERTIFIED)
    assert PublicImages.read(place).classes == ("../../cat", "dog")


@pytest.mark.parametrize("format", FORMATS)
def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, format: str) -> None:
    program = """
        import resource, sys
        import numpy as np
        from sfumato.release.export import export
        images = np.random.default_rng(0).integers(0, 256, (20, 3, 64, 64), dtype=np.uint8)
        card = dict(guarantee="certified", epsilon=1, delta=1e-5, unit="image", sentence="e")
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            export(images, np.zeros(20, int), ("a",), sys.argv[1], format=sys.argv[2], card=card)
        except OSError:
            print("refused")
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "out"), format]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "refused\n"
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (np.zeros((2, 3, 8, 8), np.float32), np.zeros(2, int)),
        (np.zeros((2, 8, 8), np.uint8), np.zeros(2, int)),
        (np.zeros((2, 3, 8, 8), np.uint8), np.zeros(3, int)),
        (np.zeros((2, 3, 8, 8), np.uint8), np.array([0, 3])),
        (np.zeros((2, 3, 8, 8), np.uint8), np.array([0.0, 1.0])),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    with pytest.raises(ValueError):
        export(images, labels, CLASSES, tmp_path / "out", card=CERTIFIED)
    assert not any(tmp_path.iterdir())
