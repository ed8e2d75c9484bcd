"""Formats that custodians have: DICOM, MedMNIST files, train/test folders, lists of files; and persons for each."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from data.samples import pictures, write_folder, write_npz
from sfumato.data import BadInput, read
from sfumato.data.inspection import inspect
from sfumato.data.source import Selection


def write_dicom(path: Path, pixels: np.ndarray, **tags: object) -> Path:
    """A minimal DICOM file with 12 stored bits, or RGB where ``pixels`` has three channels."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    found = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    colour = pixels.ndim == 3
    found.Rows, found.Columns, found.SamplesPerPixel = *pixels.shape[:2], 3 if colour else 1
    found.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    found.BitsAllocated, found.BitsStored = (8, 8) if colour else (16, 12)
    found.HighBit, found.PixelRepresentation = found.BitsStored - 1, 0
    if colour:
        found.PlanarConfiguration = 0
    for name, value in tags.items():
        setattr(found, name, value)
    found.PixelData = pixels.astype(np.uint8 if colour else np.uint16).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    pydicom.dcmwrite(path, found, enforce_file_format=True)
    return path


RAMP = np.linspace(0, 4095, 64).reshape(8, 8).round()


def test_grey_values_of_dicom(tmp_path: Path) -> None:
    for number, (tags, expected) in enumerate(
        [
            ({}, np.rint(255 * RAMP / 4095)),
            ({"PhotometricInterpretation": "MONOCHROME1"}, np.rint(255 * (1 - RAMP / 4095))),
            ({"WindowCenter": "1000.5", "WindowWidth": "1001"}, np.rint(255 * np.clip((RAMP - 500) / 1000, 0, 1))),
            (
                {
                    "RescaleSlope": 2,
                    "RescaleIntercept": -1000,
                    "WindowCenter": ["0.5", "9"],
                    "WindowWidth": ["101", "9"],
                },
                np.rint(255 * np.clip((2 * RAMP - 1000 + 50) / 100, 0, 1)),
            ),
        ]
    ):
        here = tmp_path / str(number)
        here.mkdir()
        write_dicom(here / "c" / "sick" / "1.dcm", RAMP, **tags)
        found = read(here / "c")
        assert np.array_equal(found.pixels[0, 0], expected) and found.classes == ("sick",)


def test_colour_dicom_and_resizing(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    write_dicom(tmp_path / "c" / "skin" / "1.dcm", pixels)
    assert np.array_equal(read(tmp_path / "c").pixels[0], np.moveaxis(pixels, -1, 0))
    assert read(tmp_path / "c", size=4, colour="grey").pixels.shape == (1, 1, 4, 4)


def test_the_patient_may_be_the_person_and_is_not_shown(tmp_path: Path) -> None:
    for number, patient in enumerate(["Ada^L", "Bob^M", "Ada^L"]):
        write_dicom(tmp_path / "c" / "sick" / f"{number}.dcm", RAMP, PatientID=patient)
    assert read(tmp_path / "c").persons is None
    assert read(tmp_path / "c", person_column="PatientID").persons.tolist() == [0, 1, 0]  # type: ignore[union-attr]
    write_dicom(tmp_path / "c" / "sick" / "3.dcm", RAMP)
    with pytest.raises(BadInput, match="names no person") as caught:
        read(tmp_path / "c", person_column="PatientID")
    assert "Ada" not in str(caught.value)


def test_a_damaged_dicom_file_is_a_bad_record(tmp_path: Path) -> None:
    whole = write_dicom(tmp_path / "c" / "sick" / "1.dcm", RAMP)
    (tmp_path / "c" / "sick" / "2.dcm").write_bytes(whole.read_bytes()[:-50])
    with pytest.raises(BadInput, match="DICOM file cannot be decoded"):
        read(tmp_path / "c")
    assert len(read(tmp_path / "c", skip_bad=True).pixels) == 1


def test_medmnist_files_have_three_parts(tmp_path: Path) -> None:
    path = tmp_path / "bloodmnist.npz"
    random = np.random.default_rng(0)
    counts = {"train": 7, "val": 3, "test": 4}
    np.savez(
        path,
        **{f"{part}_images": random.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8) for part, n in counts.items()},
        **{f"{part}_labels": random.integers(0, 8, (n, 1)) for part, n in counts.items()},
    )
    assert {part: len(read(path, classes=8, split=part).labels) for part in counts} == counts


def test_train_and_test_folders(tmp_path: Path) -> None:
    images, labels = pictures()
    write_folder(tmp_path / "c" / "train", images, labels)
    write_folder(tmp_path / "c" / "Test", images[labels == 0], labels[labels == 0])
    assert len(read(tmp_path / "c").labels) == 12
    test = read(tmp_path / "c", split="test")
    assert set(test.labels) == {0} and test.classes == read(tmp_path / "c").classes == ("cat", "dog", "newt")
    with pytest.raises(BadInput, match="no split called 'val'"):
        read(tmp_path / "c", split="val")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / "c" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "c" / name / "1.png")
    assert read(tmp_path / "c").classes == ("test", "train")


def write_list(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def files(tmp_path: Path, count: int = 6) -> list[str]:
    for number in range(count):
        Image.new("L", (8, 8), number).save(tmp_path / f"p{number // 2}_{number}.tif")
    return [f"p{number // 2}_{number}.tif" for number in range(count)]


def test_a_list_of_files_with_labels_and_persons(tmp_path: Path) -> None:
    names, labels = files(tmp_path), ("no, none", "yes")
    rows = [{"file": name, "label": labels[i % 2], "who": name[:2]} for i, name in enumerate(names)]
    path = write_list(tmp_path / "list.csv", rows)
    found = read(path, classes=("no, none", "yes"), person_column="who")
    assert found.labels.tolist() == [0, 1] * 3 and found.persons is not None
    assert found.persons.tolist() == [0, 0, 1, 1, 2, 2] and found.pixels[:, 0, 0, 0].tolist() == list(range(6))
    with pytest.raises(BadInput, match="label set is public"):
        read(path)
    with pytest.raises(BadInput, match="no single column 'what'"):
        read(path, classes=2, label_column="what")


def test_a_list_may_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    files(tmp_path)
    (tmp_path / "inside").mkdir()
    path = write_list(tmp_path / "inside" / "list.csv", [{"file": "../p0_0.tif", "label": "0"}])
    with pytest.raises(BadInput, match="leads out of the folder"):
        read(path, classes=2)


def test_a_person_has_one_spelling_and_an_empty_name_is_none(tmp_path: Path) -> None:
    """Two spellings would be two units, and all images without a name would be one."""

    def from_npz(names: list[str], missing: Literal["refuse", "leave out"] = "refuse") -> list[int]:
        np.savez(tmp_path / "c.npz", images=np.zeros((len(names), 8, 8), np.uint8), who=names)
        found = read(tmp_path / "c.npz", labelled=False, person_column="who", missing_persons=missing).persons
        return [] if found is None else found.tolist()

    def from_names(names: list[str], missing: Literal["refuse", "leave out"] = "refuse") -> list[int]:
        folder = tmp_path / f"c{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for number, name in enumerate(names):
            Image.new("L", (8, 8)).save(folder / f"{number}-{name}-.png")
        found = read(folder, labelled=False, person_pattern="-(.*)-", missing_persons=missing).persons
        return [] if found is None else found.tolist()

    for persons in (from_npz, from_names):
        assert persons(["Zo\u00eb", "Zoe\u0308 ", "Ann", "Zo\u00eb"]) == [0, 0, 1, 0]
        with pytest.raises(BadInput, match="names no person"):
            persons(["Ann", "", "Bob", " "])
        assert persons(["Ann", "", "Bob", " "], "leave out") == [0, 1]


def test_persons_from_a_file_and_from_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "c" / "sick").mkdir(parents=True)
    names = files(tmp_path / "c" / "sick")
    by_pattern = read(tmp_path / "c", person_pattern=r"^(p\d)_").persons
    rows = [{"file": f"sick/{name}", "person": f"Nora {name[:2]}"} for name in names]
    by_file = read(tmp_path / "c", person_file=write_list(tmp_path / "persons.csv", rows)).persons
    assert by_pattern is not None and by_file is not None
    assert by_pattern.tolist() == by_file.tolist() == [0, 0, 1, 1, 2, 2]
    write_list(tmp_path / "persons.csv", rows[1:])
    with pytest.raises(BadInput, match="names no person") as caught:
        read(tmp_path / "c", person_file=tmp_path / "persons.csv")
    assert "Nora" not in str(caught.value) and "p0_0" not in str(caught.value)
    with pytest.raises(BadInput, match="not a regular expression"):
        read(tmp_path / "c", person_pattern="(")
    with pytest.raises(BadInput, match="more than one way"):
        read(tmp_path / "c", person_pattern="p", person_column="PatientID")
    with pytest.raises(BadInput, match="have no file names"):
        read(write_npz(tmp_path / "c.npz", *pictures()), classes=3, person_pattern="p")


def test_twelve_bits_in_sixteen_come_out_bright_where_that_is_said(tmp_path: Path) -> None:
    for row in range(3):
        place = tmp_path / "c" / "sick" / f"{row}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), (0, 2048, 4095)[row], np.uint16)).save(place)
    assert read(tmp_path / "c").pixels.max() == 16
    assert sorted(read(tmp_path / "c", bits=12).pixels.max(axis=(1, 2, 3))) == [0, 128, 255]
    found = inspect(tmp_path / "c", Selection())
    assert (found.brightest, found.suggested_bits) == (16, 12)
    with pytest.raises(ValueError, match="8 to 16"):
        read(tmp_path / "c", bits=7)
