"""Whole journeys through the real command line, from raw files to pages in a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser import DESKTOP, PHONE, Browser
from sfumato.data.digits import draw_digits

SMALL = ("--set", "features=200", "--set", "iterations=200", "--set", "batch_size=50")


def sfumato(*arguments: str | Path | float, status: int = 0) -> str:
    """Run a command to its end and return what it prints."""
    words = [sys.executable, "-m", "sfumato", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == status, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def digit_folder(place: Path, *, count: int, seed: int) -> Path:
    """A folder with a sub-folder of PNG files for each digit."""
    drawn = draw_digits(count, seed=seed)
    for row, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
        folder = place / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(folder / f"{row:05d}.png")
    return place


def check_pages(*pages: Path) -> None:
    with Browser() as browser:
        for page in pages:
            for size in (PHONE, DESKTOP):
                assert browser.open(page, size).problems == [], page


@pytest.mark.long
def test_from_a_folder_of_images_to_a_reviewed_release(tmp_path: Path) -> None:
    data, held_out = (digit_folder(tmp_path / name, count=600, seed=seed) for seed, name in enumerate(("data", "test")))
    run, synthetic = tmp_path / "run", tmp_path / "synthetic"
    assert "dp-merf" in sfumato("plan", "--epsilon", 3)
    sfumato("train", data, "--method", "dp-merf", "--epsilon", 3, "--out", run, *SMALL)
    sfumato("sample", run, "--count", 500, "--out", synthetic)
    assert "no test part" in sfumato("evaluate", synthetic, "--real", data, status=2)
    report = run / "internal" / "evaluation.json"
    told = sfumato(
        "evaluate", synthetic, "--real", data, "--real-test", held_out, "--no-inception", "--seeds", 1, "--json", report
    )
    assert "NOT PRIVATE" in told
    rows = {entry["row"]: entry["mean"] for entry in json.loads(report.read_text())["measurements"]}
    assert rows and all(np.isfinite(value) for value in rows.values())
    assert "is on this ledger" in sfumato("ledger", run / "ledger.jsonl", "--release", run)
    sfumato("report", run)
    check_pages(run / "public.html", run / "internal" / "internal.html", run / "release" / "card.html")


@pytest.mark.long
def test_patients_with_several_images_and_images_held_out(tmp_path: Path) -> None:
    """Each patient has five images; the guarantee holds per patient, and a share of them is held out."""
    drawn = draw_digits(600, seed=3)
    for row, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
        folder = tmp_path / "data" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(folder / f"patient{row // 5}_{row}.tif")
    data, run, pattern = tmp_path / "data", tmp_path / "run", ("--person-pattern", r"^(\w+)_")
    assert "persons: 120, with up to 5" in sfumato("inspect", data, *pattern)
    words = ("--method", "dp-merf", "--epsilon", 3, "--hold-out", 0.3, "--out", run, *pattern, *SMALL)
    assert "all images of a person" in sfumato("train", data, *words)
    assert json.loads((run / "release" / "card.json").read_text())["unit"] == "person"
    sfumato("sample", run, "--count", 300, "--out", tmp_path / "synthetic")
    report = run / "internal" / "evaluation.json"
    evaluation = ("--no-inception", "--seeds", 1, "--json", report)
    sfumato("evaluate", tmp_path / "synthetic", "--real", data, "--held-out", run, *pattern, *evaluation)
    counts = json.loads(report.read_text())["counts"]
    assert counts["real_train"] + counts["real_test"] == 600 and counts["real_train"] % 5 == 0
    baseline = [
        entry["mean"]
        for entry in json.loads(report.read_text())["measurements"]
        if entry["metric"] == "accuracy" and entry["row"].startswith("real")
    ]
    assert baseline and max(baseline) < 1
    sfumato("report", run)
    check_pages(run / "public.html", run / "internal" / "internal.html")


@pytest.mark.long
def test_a_comparison_on_a_folder_without_a_test_part(tmp_path: Path) -> None:
    data, out = digit_folder(tmp_path / "data", count=400, seed=5), tmp_path / "out"
    words = ("compare", data, "--methods", "dp-merf", "--epsilon", 3, "--out", out, "--images", 60, "--no-inception")
    small = tuple(word for pair in SMALL if pair != "--set" for word in ("--set", pair))
    assert "no test part" in sfumato(*words, status=2) and not out.exists()
    sfumato(*words, "--hold-out", 0.3, "--jobs", 1, *small)
    check_pages(out / "comparison.html")
