"""Fifteen journeys through the real command line, each from raw files to pages in a browser."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.test_custodian_formats import write_dicom
from journeys.journey import EVALUATION, MERF, SMALL, check_pages, digit_folder, reported, sfumato
from sfumato.data.digits import draw_digits

pytestmark = pytest.mark.long


def card(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "release" / "card.json").read_text())
    return found


def test_from_a_folder_of_images_to_a_reviewed_release(tmp_path: Path) -> None:
    data, held_out = (digit_folder(tmp_path / name, count=600, seed=seed) for seed, name in enumerate(("data", "test")))
    run, synthetic = tmp_path / "run", tmp_path / "synthetic"
    assert "--declared-size 600" in sfumato("inspect", data)
    assert "dp-merf" in sfumato("plan", "--declared-size", 600, "--epsilon", 3)
    sfumato("train", data, *MERF, "--epsilon", 3, "--out", run)
    sfumato("sample", run, "--count", 300, "--out", synthetic)
    assert "no test part" in sfumato("evaluate", synthetic, "--real", data, status=2)
    report = run / "internal" / "evaluation.json"
    words = ("evaluate", synthetic, "--real", data, "--real-test", held_out, "--run", run)
    assert "NOT PRIVATE" in sfumato(*words, *EVALUATION)
    rows = {entry["row"]: entry["mean"] for entry in json.loads(report.read_text())["measurements"]}
    assert rows and all(np.isfinite(value) for value in rows.values())
    assert "is on this ledger" in sfumato("ledger", run / "ledger.jsonl", "--release", run)
    reported(run)


def test_patients_with_several_images_and_images_held_out(tmp_path: Path) -> None:
    """Each patient has five images; the guarantee holds per patient, and a share of them is held out."""
    data = digit_folder(tmp_path / "data", count=600, seed=3, name="patient{person}_{row}.tif")
    run, pattern = tmp_path / "run", ("--person-pattern", r"^([^_]+)_")
    assert "persons: 120, with up to 5" in sfumato("inspect", data, *pattern)
    words = (*MERF, "--epsilon", 3, "--hold-out", 0.3, "--out", run, *pattern)
    assert "all images of a person" in sfumato("train", data, *words)
    assert card(run)["unit"] == "person"
    sfumato("sample", run, "--count", 200, "--out", tmp_path / "synthetic")
    report = run / "internal" / "evaluation.json"
    words = ("evaluate", tmp_path / "synthetic", "--real", data, "--held-out", run, *pattern, "--json", report)
    sfumato(*words, *EVALUATION)
    found = json.loads(report.read_text())
    counts = found["counts"]
    assert counts["real_train"] + counts["real_test"] == 600 and counts["real_train"] % 5 == 0
    baseline = [
        entry["mean"]
        for entry in found["measurements"]
        if entry["metric"] == "accuracy" and entry["row"].startswith("real")
    ]
    assert baseline and max(baseline) < 1
    reported(run, said="for each person")


def test_a_comparison_on_a_folder_without_a_test_part(tmp_path: Path) -> None:
    data, out = digit_folder(tmp_path / "data", count=300, seed=5, name="p{person}_{row}.png"), tmp_path / "out"
    chosen = ("--person-pattern", r"^([^_]+)_", "--methods", "dp-merf", "--epsilon", 3)
    words = ("compare", data, *chosen, "--out", out, "--images", 60, "--no-inception")
    assert "no test part" in sfumato(*words, status=2) and not out.exists()
    sfumato(*words, "--hold-out", 0.3, "--jobs", 1, "--protocol", "dppm", *SMALL)
    assert json.loads((out / "comparison.json").read_text())["rows"][0]["unit"] == "person"
    check_pages(out / "comparison.html", said="dp-merf")


def test_letters_in_26_classes_without_naming_a_method(tmp_path: Path) -> None:
    data, run = tmp_path / "letters", tmp_path / "run"
    drawn = draw_digits(260, seed=6)
    for row, pixels in enumerate(drawn.pixels):
        folder = data / "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[row % 26]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).convert("RGB").save(folder / f"{row}.png")
    assert "--colour grey" in sfumato("inspect", data)
    words = ("--colour", "grey", "--epsilon", 10, "--time-limit", 0.5, "--device", "cpu", "--out", run)
    assert "--time-limit needs --declared-size" in sfumato("train", data, *words, status=2) and not run.exists()
    said = sfumato("train", data, *words, "--declared-size", 260)
    assert "Method: " in said and "on this device" in said
    assert len(card(run)["classes"]) == 26  # type: ignore[arg-type]
    reported(run, said="Z")


def test_few_images_at_a_small_epsilon_are_not_certified_without_a_word(tmp_path: Path) -> None:
    data, run = digit_folder(tmp_path / "data", count=500, seed=7), tmp_path / "run"
    said = sfumato("train", data, *MERF, "--epsilon", 1, "--declared-size", 500, "--out", run)
    assert "WARNING: expected use hopeless" in said
    reported(run, said="hopeless")


def test_persons_from_a_file_and_an_officer_who_reads_the_card(tmp_path: Path) -> None:
    data, run, persons = digit_folder(tmp_path / "data", count=200, seed=8), tmp_path / "run", tmp_path / "persons.csv"
    with persons.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("file", "person"))
        rows.writerows(
            (f"{path.parent.name}/{path.name}", f"Nora {int(path.stem) // 4}") for path in data.rglob("*.png")
        )
    notes = ("--note", "purpose=teaching radiographers", "--note", "contact=data@example.org")
    measured = ("--release-accuracy", 5)
    sfumato("train", data, *MERF, "--epsilon", 3, "--persons", persons, *notes, *measured, "--out", run)
    assert "Measured: a linear classifier" in str(card(run)["remarks"])
    assert "Nora" not in (run / "release" / "card.json").read_text()
    reported(run, said="teaching radiographers")


def test_dicom_files_of_patients(tmp_path: Path) -> None:
    data, run = tmp_path / "scans", tmp_path / "run"
    drawn = draw_digits(60, seed=9)
    name = "Zyxwright^Quill"  # long enough not to occur by chance in weights or in the base64 text of a picture
    for row, pixels in enumerate(drawn.pixels):
        place = data / ("sick" if row % 2 else "healthy") / f"{row}.dcm"
        write_dicom(place, pixels[0].astype(np.uint16) * 16, PatientID=f"{name}{row // 3}", PatientName=name)
    patients = ("--person-column", "PatientID")
    assert "persons: 20, with up to 3" in sfumato("inspect", data, *patients)
    sfumato("train", data, *MERF, "--epsilon", 3, *patients, "--out", run)
    assert card(run)["unit"] == "person"
    assert not any(b"Zyxwright" in path.read_bytes() for path in run.rglob("*") if path.is_file())
    reported(run)


def test_a_medmnist_file_is_evaluated_on_its_test_part(tmp_path: Path) -> None:
    data, run = tmp_path / "bloodmnist.npz", tmp_path / "run"
    parts = {
        part: draw_digits(count, seed=seed) for seed, (part, count) in enumerate({"train": 300, "test": 150}.items())
    }
    np.savez(
        data,
        **{f"{part}_images": drawn.pixels[:, 0] for part, drawn in parts.items()},
        **{f"{part}_labels": drawn.labels[:, None] for part, drawn in parts.items()},
    )
    sfumato("train", data, "--classes", 10, *MERF, "--epsilon", 3, "--out", run)
    sfumato("sample", run, "--count", 200, "--format", "npz", "--out", tmp_path / "synthetic")
    report = ("--json", run / "internal" / "evaluation.json")
    sfumato("evaluate", tmp_path / "synthetic", "--real", data, "--classes", 10, *report, *EVALUATION)
    reported(run)


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


def test_train_and_test_folders_and_an_export_for_a_catalogue(tmp_path: Path) -> None:
    data, run, synthetic = tmp_path / "data", tmp_path / "run", tmp_path / "synthetic"
    for seed, (part, count) in enumerate({"train": 300, "test": 150}.items()):
        digit_folder(data / part, count=count, seed=seed)
    sfumato("train", data, *MERF, "--epsilon", 3, "--out", run)
    sfumato("sample", run, "--count", 100, "--format", "parquet", "--out", synthetic)
    assert json.loads((synthetic / "croissant.json").read_text())["conformsTo"].endswith("croissant/1.1")
    assert (synthetic / "README.md").read_text().startswith("---\n")
    sfumato("evaluate", synthetic, "--real", data, "--json", run / "internal" / "evaluation.json", *EVALUATION)
    reported(run)


def test_the_command_of_a_run_is_repeated_from_its_file(tmp_path: Path) -> None:
    data, first, second = digit_folder(tmp_path / "data", count=100, seed=11), tmp_path / "first", tmp_path / "second"
    sfumato("train", data, *MERF, "--epsilon", 2, "--out", first)
    sfumato("train", data, "--config", first / "internal" / "command.toml", "--out", second)
    assert card(first)["parameters"] == card(second)["parameters"]
    reported(second)


def test_a_training_that_was_killed_goes_on(tmp_path: Path) -> None:
    data, run = digit_folder(tmp_path / "data", count=100, seed=12), tmp_path / "run"
    words = ("train", data, "--method", "dp-vae", "--epsilon", 5, "--device", "cpu", "--set", "width=4", "--out", run)
    started = subprocess.Popen([sys.executable, "-m", "sfumato", *map(str, words)], stderr=subprocess.DEVNULL)
    while not list((run / "internal" / "checkpoint").glob("*.safetensors")) and started.poll() is None:
        time.sleep(0.2)
    started.send_signal(signal.SIGKILL)
    started.wait()
    assert not (run / "release").exists()
    sfumato(*words, "--resume")
    assert float(str(card(run)["epsilon"])) <= 5
    reported(run)


def test_settings_chosen_under_the_budget(tmp_path: Path) -> None:
    data, run = digit_folder(tmp_path / "data", count=200, seed=13), tmp_path / "run"
    grid = ("--grid", "length_scale=5,10", "--grid", "features=100", "--grid", "iterations=50", "--trials", 2)
    said = sfumato("tune", data, "--method", "dp-merf", *grid, "--epsilon", 8, "--device", "cpu", "--out", run)
    assert "Chosen: length_scale" in said
    assert "selection" in sfumato("ledger", run / "ledger.jsonl", "--release", run)
    reported(run, said="private selection")


def test_one_ledger_for_two_runs_of_a_collection(tmp_path: Path) -> None:
    data, ledger = digit_folder(tmp_path / "data", count=100, seed=14), tmp_path / "ledger.jsonl"
    sfumato("ledger", ledger, "--create", "--epsilon", 4, "--delta", 1e-5)
    words = ("train", data, *MERF, "--ledger", ledger)
    sfumato(*words, "--epsilon", 1.5, "--out", tmp_path / "one")
    sfumato(*words, "--epsilon", 1.5, "--out", tmp_path / "two")
    assert "refused" in sfumato(*words, "--epsilon", 3, "--out", tmp_path / "three", status=2)
    assert not (tmp_path / "three").exists()
    reported(tmp_path / "two", said="Other trainings have used the same collection")


def test_an_algorithm_that_needs_the_raw_records_is_marked_everywhere(tmp_path: Path) -> None:
    data, run = digit_folder(tmp_path / "data", count=60, seed=15), tmp_path / "run"
    words = ("train", data, "--method", "dp2-vae-published", "--device", "cpu", "--out", run)
    small = ("--set", "width=4", "--set", "encoders=4", "--set", "iterations=5", "--set", "pretraining_steps=2")
    assert "--no-guarantee" in sfumato(*words, *small, "--epsilon", 1, status=2)
    sfumato(*words, *small, "--no-guarantee")
    assert "allow-no-guarantee" in sfumato("sample", run, "--count", 10, "--out", tmp_path / "synthetic", status=2)
    reported(run, said="No guarantee")
