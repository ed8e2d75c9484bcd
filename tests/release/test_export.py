"""Exported images can be read again and never travel without what is promised about them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pydicom
import pytest
from PIL import Image

from release.cards import certified, without_guarantee
from sfumato.data import PublicImages
from sfumato.release import Card, SyntheticImages
from sfumato.release.export import export, is_export, read_export

FORMATS = ("folder", "npz", "parquet", "dicom")
CLASSES = ("cat", "dog", "yak")


def _card(kind: Callable[..., Card] = certified, channels: int = 3, classes: tuple[str, ...] = CLASSES) -> Card:
    return kind(shape=(channels, 8, 8), classes=classes)


def _synthetic(card: Card) -> SyntheticImages:
    images = np.random.default_rng(0).integers(0, 256, (20, *card.shape), dtype=np.uint8)
    return SyntheticImages(images, np.arange(20) % 2, card)


def _metadata(place: Path, format: str) -> tuple[str, str]:
    if format == "folder":
        with Image.open(next((place / "images" / "cat").iterdir())) as picture:
            return picture.text["guarantee"], picture.text["sentence"]
    if format == "npz":
        with np.load(place / "images.npz", allow_pickle=False) as arrays:
            return str(arrays["guarantee"]), str(arrays["sentence"])
    if format == "dicom":
        found = pydicom.dcmread(next((place / "images" / "cat").iterdir()))
        guarantee, _, sentence = found.ImageComments.removeprefix("Synthetic image, ").partition(": ")
        return guarantee, sentence
    metadata = pq.read_schema(place / "images.parquet").metadata
    return metadata[b"guarantee"].decode(), metadata[b"sentence"].decode()


def test_round_trip_with_the_card(tmp_path: Path) -> None:
    for channels in [1, 3]:
        for number, format in enumerate(FORMATS):
            here = tmp_path / f"{channels}-{number}"
            here.mkdir()
            drawn = _synthetic(_card(channels=channels))
            place = export(drawn, here / "out", format=format)
            found = read_export(place)
            order = np.argsort(drawn.labels, kind="stable") if format in ("folder", "dicom") else np.arange(20)
            np.testing.assert_array_equal(found.images, drawn.images[order])
            np.testing.assert_array_equal(found.labels, drawn.labels[order])
            assert found.card == drawn.card and found.classes == CLASSES
            assert PublicImages.read(place).classes == CLASSES
            assert json.loads((place / "card.json").read_text()) == drawn.card.to_json()
            assert _metadata(place, format) == ("certified", drawn.card.sentence)


def test_dicom_files_say_that_they_are_synthetic(tmp_path: Path) -> None:
    place = export(_synthetic(_card(channels=1)), tmp_path / "out", format="dicom")
    found = [pydicom.dcmread(path) for path in sorted(place.rglob("*.dcm"))]
    assert len(found) == 20
    for one in found:
        assert (one.SyntheticData, one.ConversionType) == ("YES", "SYN") and one.PatientName == "SYNTHETIC^IMAGE"
        assert one.SOPInstanceUID.is_valid and one.file_meta.MediaStorageSOPInstanceUID == one.SOPInstanceUID
        assert "e^ε" in one.ImageComments and one.pixel_array.shape == (8, 8)
    assert len({one.SOPInstanceUID for one in found}) == 20
    assert len({one.StudyInstanceUID for one in found}) == 1 and len({one.SeriesInstanceUID for one in found}) == 2
    listed = json.loads((place / "croissant.json").read_text())["distribution"][0]
    assert listed["encodingFormat"] == "application/dicom" and list(place.glob(listed["includes"]))


def test_without_a_guarantee_it_takes_the_flag_and_says_so(tmp_path: Path) -> None:
    for number, format in enumerate(FORMATS):
        own_folder = tmp_path / str(number)
        own_folder.mkdir()
        drawn = _synthetic(_card(without_guarantee))
        with pytest.raises(ValueError, match="allow_no_guarantee"):
            export(drawn, own_folder / "out", format=format)
        assert not any(own_folder.iterdir())
        place = export(drawn, own_folder / "out", format=format, allow_no_guarantee=True)
        guarantee, sentence = _metadata(place, format)
        assert guarantee == "no guarantee" and sentence.startswith("NO GUARANTEE")
        assert json.loads((place / "card.json").read_text())["guarantee"] == "no guarantee"


def test_labels_follow_the_card_when_folders_sort_otherwise(tmp_path: Path) -> None:
    drawn = _synthetic(_card(classes=("yak", "cat")))
    found = read_export(export(drawn, tmp_path / "out"))
    assert found.classes == ("yak", "cat")
    np.testing.assert_array_equal(found.images[found.labels == 0], drawn.images[drawn.labels == 0])


def test_a_folder_without_a_card_is_no_export(tmp_path: Path) -> None:
    place = export(_synthetic(_card()), tmp_path / "out")
    assert is_export(place)
    (place / "card.json").unlink()
    assert not is_export(place)
    with pytest.raises(FileNotFoundError, match=r"card\.json"):
        read_export(place)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError):
        export(_synthetic(_card()), tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "thesis.txt"]


def test_class_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no class folder can have"):
        export(_synthetic(_card(classes=("../../cat", "dog"))), tmp_path / "out")
    assert not any(tmp_path.iterdir())
    place = export(_synthetic(_card(classes=("../../cat", "dog"))), tmp_path / "out", format="npz")
    assert PublicImages.read(place).classes == ("../../cat", "dog")


@pytest.mark.long
def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file size, in a process of its own, stands for the full disk."""
    program = """
        import resource, sys
        import numpy as np
        from release.cards import certified
        from sfumato.release import SyntheticImages
        from sfumato.release.export import export
        images = np.random.default_rng(0).integers(0, 256, (20, 3, 64, 64), dtype=np.uint8)
        drawn = SyntheticImages(images, np.zeros(20, int), certified(shape=(3, 64, 64), classes=("a",)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        for format in sys.argv[2:]:
            try:
                export(drawn, sys.argv[1], format=format)
            except OSError:
                print(f"{format} refused")
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "out"), *FORMATS]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "PYTHONPATH": paths}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.splitlines() == [f"{format} refused" for format in FORMATS]
    assert not any(tmp_path.iterdir())


def test_catalogues_can_read_what_it_is(tmp_path: Path) -> None:
    for number, format in enumerate(FORMATS):
        own_folder = tmp_path / str(number)
        own_folder.mkdir()
        card = certified(
            shape=(1, 8, 8), classes=CLASSES, notes={"contact": "data@example.org"}, remarks=("For tests.",)
        )
        place = export(_synthetic(card), own_folder / "out", format=format)
        text = (place / "README.md").read_text()
        front, _, body = text.removeprefix("---\n").partition("\n---\n")
        assert "- differential-privacy" in front and "- n<1K" in front and "task_categories:" in front
        assert card.sentence in body and "contact: data@example.org" in body and "For tests." in body
        found = json.loads((place / "croissant.json").read_text())
        assert found["conformsTo"] == "http://mlcommons.org/croissant/1.1" and found["@type"] == "sc:Dataset"
        assert card.run in found["prov:wasGeneratedBy"]["prov:label"] and found["datePublished"] == card.made[:10]
        part = found["distribution"][0]
        if format in ("folder", "dicom"):
            assert list(place.glob(part["includes"]))
        else:
            assert part["sha256"] == hashlib.sha256((place / part["contentUrl"]).read_bytes()).hexdigest()
        if format != "npz":
            assert [field["name"] for field in found["recordSet"][0]["field"]] == ["image", "label"]
