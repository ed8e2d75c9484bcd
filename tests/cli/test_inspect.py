"""``sfumato inspect`` says what is there, names bad files, and prints a command that works."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.commands import run_here
from data.test_custodian_formats import RAMP, write_dicom

SMALL = ("--set", "features=32", "--set", "width=2", "--set", "iterations=2", "--set", "batch_size=10")


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """Two classes, images of two sizes stored as colour though they are grey, and one file that is no image."""
    random = np.random.default_rng(0)
    for number in range(12):
        side = 40 if number % 3 else 48
        grey = random.integers(0, 256, (side, side), dtype=np.uint8)
        folder = tmp_path / "letters" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.stack([grey] * 3, axis=-1)).save(folder / f"w{number // 3}_{number}.png")
    (tmp_path / "letters" / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "letters" / "a" / ".hidden").write_text("x")
    return tmp_path / "letters"


def test_what_is_there_and_what_to_run_next(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(monkeypatch, "inspect", str(letters), "--person-pattern", "^(w.)_", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notice"].startswith("INTERNAL")
    assert found["images"] == 12 and found["labels"] == {"a": 6, "b": 6} and found["persons"] == 4
    assert found["colours"] == {"grey stored as colour": 12} and len(found["sizes"]) == 2
    assert found["bad_images"] == 1 and "a/notes.txt" in found["bad"][0]
    assert found["suggested"]["size"] == 32 and not found["suggested"]["skip_bad"]
    words = shlex.split(found["next_command"])
    assert words[:3] == ["sfumato", "train", str(letters)]
    assert "--size 32 --colour grey" in found["next_command"] and "--skip-bad" in words
    words[words.index("run")] = str(tmp_path / "run")
    assert run_here(monkeypatch, *words[1:], "--method", "dp-merf", *SMALL) == 0
    assert json.loads((tmp_path / "run" / "release" / "card.json").read_text())["shape"] == [1, 32, 32]


def test_as_text(letters: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here(monkeypatch, "inspect", str(letters)) == 0
    told = capsys.readouterr()
    assert "12 grey stored as colour" in told.out and "bad: a/notes.txt" in told.out and "INTERNAL" in told.err
    assert "--person-pattern" in told.out


def test_images_that_are_also_in_the_public_collection_are_counted(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = np.random.default_rng(1).integers(0, 256, (40, 40), dtype=np.uint8)
    (tmp_path / "public").mkdir()
    Image.fromarray(other).save(tmp_path / "public" / "other.png")
    command = ("inspect", str(letters), "--public", str(tmp_path / "public"))
    assert run_here(monkeypatch, *command) == 0
    told = capsys.readouterr()
    assert "pixel by pixel: 0" in told.out and "not public" not in told.err
    with Image.open(letters / "a" / "w0_0.png") as image:
        image.convert("L").save(tmp_path / "public" / "stored-as-grey.png")
    assert run_here(monkeypatch, *command) == 0
    told = capsys.readouterr()
    assert "pixel by pixel: 1" in told.out and "not public" in told.err


def test_text_that_is_burned_into_dicom_files_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dicom(tmp_path / "c" / "sick" / "1.dcm", RAMP, BurnedInAnnotation="YES", PatientID="Ada^L")
    write_dicom(tmp_path / "c" / "sick" / "2.dcm", RAMP, PatientID="Ada^L")
    assert run_here(monkeypatch, "inspect", str(tmp_path / "c"), "--person-column", "PatientID") == 0
    told = capsys.readouterr()
    assert "1 DICOM files say that text is burned" in told.err and "persons: 1, with up to 2" in told.out
    assert "Ada" not in told.out + told.err


def test_arrays_without_a_declared_label_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.npz"
    np.savez(path, images=np.zeros((5, 28, 28), np.uint8), labels=np.array([0, 1, 1, 4, 0]))
    assert run_here(monkeypatch, "inspect", str(path)) == 0
    told = capsys.readouterr().out
    assert "--classes 5" in told and "The label set becomes public" in told
