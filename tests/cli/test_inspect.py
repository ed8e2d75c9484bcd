"""``sfumato inspect`` says what is there, names bad files, and prints a command that works."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cli.commands import run_here
from data.test_custodian_formats import RAMP, write_dicom
from sfumato.data import read
from sfumato.data.errors import BadInput
from sfumato.data.images import Options

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


def test_what_is_printed_is_one_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So few images ask for another method than the number that is assumed where none is declared."""
    path, stopped = tmp_path / "c.npz", []
    monkeypatch.setattr("sfumato.training.run.train_run", lambda *_: stopped.append(1) or _stop())
    pixels = np.random.default_rng(0).integers(0, 256, (400, 28, 28), np.uint8)
    np.savez(path, images=pixels, labels=np.arange(400) % 10, who=np.arange(400) // 2)
    for options, units in (((), "400 images"), (("--person-column", "who"), "200 persons")):
        assert run_here(monkeypatch, "inspect", str(path), *options) == 0
        printed = capsys.readouterr().out.splitlines()
        plan, train = (
            shlex.split(next(line for line in printed if f"sfumato {word} " in line).partition(": ")[2])
            for word in ("plan", "train")
        )
        assert run_here(monkeypatch, *plan[1:]) == 0
        told = capsys.readouterr().out
        takes = re.search(r"'sfumato train' takes (.*)", told)
        assert takes and units in told and units in takes[1]
        train[train.index("run")] = str(tmp_path / f"run{len(stopped)}")
        assert run_here(monkeypatch, *train[1:]) == 130
        assert f"Method: {takes[1]}" in capsys.readouterr().err
    assert len(stopped) == 2


def _stop() -> None:
    raise KeyboardInterrupt


def faces(folder: Path, *names: str) -> str:
    """Images of two classes with these file names; a name has its class before a slash."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / name)
    return str(folder)


def test_patterns_of_persons_are_proposed_from_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{'ab'[row % 2]}/person{row // 3}_bacteria_{row}.jpeg.png" for row in range(12)]
    data = faces(tmp_path / "d", *names, "a/IM-1.png")
    assert run_here(monkeypatch, "inspect", data, "--json") == 0
    found = json.loads(capsys.readouterr().out)["person_patterns"][0]
    assert (found["persons"], found["fewest"], found["most"], found["unnamed"]) == (4, 3, 3, {"a": 1})
    (tmp_path / "d" / "a" / "IM-1.png").unlink()
    assert run_here(monkeypatch, "inspect", data, "--person-pattern", found["pattern"]) == 0
    told = capsys.readouterr()
    assert "persons: 4, with up to 3" in told.out and "PERSONS" not in told.err and "leading zeros" not in told.err
    # A number, or a name for each image, is no person's name.
    plain = faces(tmp_path / "plain", "a/1.png", "b/2.png", "b/x-3.png")
    assert run_here(monkeypatch, "inspect", plain) == 0
    assert "takes" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pattern", "said", "goes_on"),
    [
        ("^([^_]+)_", "2 images name no person (b: 2); in b none does", False),
        ("^(x)", "no image names a person", False),
        ("^(.)", "one person's", False),
        ("^(.*)", "every image is a person of its own", True),
    ],
)
def test_a_pattern_that_names_persons_wrongly_is_said_and_leaves_nothing_out(
    pattern: str,
    said: str,
    goes_on: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = faces(tmp_path / "d", "a/p1_1.png", "a/p1_2.png", "a/p2_1.png", "b/p3.png", "b/p4.png")
    assert run_here(monkeypatch, "inspect", data, "--person-pattern", pattern) == 0
    told = capsys.readouterr()
    assert f"PERSONS: {said}" in told.err.replace("PERSONS: all images that name a person are", "PERSONS:")
    assert (
        ("Next: sfumato train" in told.out) is goes_on and "--skip-bad" not in told.out and "0 that cannot" in told.out
    )


def test_images_that_name_no_person_are_left_out_only_where_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = faces(tmp_path / "d", "a/p1_1.png", "a/p1_2.png", "b/p2_1.png", "b/3.png")
    options: Options = {"person_pattern": "^([^_]+)_"}
    with pytest.raises(BadInput, match="names no person"):
        read(data, skip_bad=True, **options)
    assert len(read(data, missing_persons="leave out", **options).pixels) == 3
    words = ("inspect", data, "--person-pattern", "^([^_]+)_", "--missing-persons", "leave out")
    assert run_here(monkeypatch, *words) == 0
    told = capsys.readouterr()
    assert "1 images name no person (b: 1) and are left out" in told.err
    assert "--missing-persons 'leave out'" in next(line for line in told.out.splitlines() if "Next:" in line)


def test_parts_that_are_left_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = faces(tmp_path / "d", "train/a/1.png", "train/b/2.png", "test/a/3.png", "val/a/4.png", "val/b/5.png")
    assert run_here(monkeypatch, "inspect", data) == 0
    told = capsys.readouterr().out
    assert "images: 2 that" in told and "left out" in told and "test (1 images), val (2 images)" in told


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
