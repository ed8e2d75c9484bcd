"""Journeys of custodians with letters, persons in a list, a list of files, and a command to repeat."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from journeys.journey import MERF, digit_folder, reported, sfumato
from sfumato.data.digits import draw_digits

pytestmark = pytest.mark.long


def card(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "release" / "card.json").read_text())
    return found


def test_letters_in_26_classes_without_naming_a_method(tmp_path: Path) -> None:
    data, run = tmp_path / "letters", tmp_path / "run"
    drawn = draw_digits(260, seed=6)
    for row, pixels in enumerate(drawn.pixels):
        folder = data / "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[row % 26]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).convert("RGB").save(folder / f"{row}.png")
    assert "--colour grey" in sfumato("inspect", data)
    words = ("--colour", "grey", "--epsilon", 10, "--time-limit", 0.05, "--device", "cpu", "--out", run)
    said = sfumato("train", data, *words)
    assert "Method: privae" in said and "Your number is private" in said
    assert len(card(run)["classes"]) == 26  # type: ignore[arg-type]
    reported(run, said="Z")


def test_persons_from_a_file_and_an_officer_who_reads_the_card(tmp_path: Path) -> None:
    data, run, persons = digit_folder(tmp_path / "data", count=200, seed=8), tmp_path / "run", tmp_path / "persons.csv"
    with persons.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("file", "person"))
        rows.writerows(
            (f"{path.parent.name}/{path.name}", f"Nora {int(path.stem) // 4}") for path in data.rglob("*.png")
        )
    notes = ("--note", "purpose=teaching radiographers", "--note", "contact=data@example.org")
    sfumato("train", data, *MERF, "--epsilon", 3, "--persons", persons, *notes, "--out", run)
    assert "Nora" not in (run / "release" / "card.json").read_text()
    reported(run, said="teaching radiographers")


def test_a_list_of_tiff_files_with_labels_that_have_commas(tmp_path: Path) -> None:
    data, run = tmp_path / "list.csv", tmp_path / "run"
    drawn = draw_digits(90, seed=10)
    with data.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("path", "finding"))
        for row, pixels in enumerate(drawn.pixels):
            Image.fromarray(pixels[0]).save(tmp_path / f"{row}.tif")
            rows.writerow((f"{row}.tif", ("mass, benign", "none")[row % 2]))
    columns = ("--image-column", "path", "--label-column", "finding", "--classes", '"mass, benign",none')
    sfumato("train", data, *columns, *MERF, "--epsilon", 3, "--out", run)
    assert card(run)["classes"] == ["mass, benign", "none"]
    reported(run, said="mass, benign")


def test_the_command_of_a_run_is_repeated_from_its_file(tmp_path: Path) -> None:
    data, first, second = digit_folder(tmp_path / "data", count=100, seed=11), tmp_path / "first", tmp_path / "second"
    sfumato("train", data, *MERF, "--epsilon", 2, "--out", first)
    sfumato("train", data, "--config", first / "internal" / "command.toml", "--out", second)
    assert card(first)["parameters"] == card(second)["parameters"]
    reported(second)
