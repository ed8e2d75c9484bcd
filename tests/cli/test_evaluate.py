"""The command reads files, says NOT PRIVATE, writes JSON for the owner, and explains what is wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import typer
from typer.testing import CliRunner

from release.cards import certified
from sfumato.cli.evaluate import evaluate_command
from sfumato.data.images import read
from sfumato.release import SyntheticImages
from sfumato.release.export import export

app = typer.Typer()
app.command()(evaluate_command)


def write(path: Path, count: int, seed: int) -> Path:
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = random.integers(0, 120, size=(count, 12, 12), dtype=np.uint8)
    images[labels == 1, :, :6] += 100
    np.savez(path, images=images, labels=labels)
    return path


def test_a_run_from_an_export_to_json(tmp_path: Path) -> None:
    real, test = (write(tmp_path / f"{name}.npz", 40, seed) for seed, name in enumerate(("train", "test")))
    source = read(write(tmp_path / "source.npz", 40, 2), infer_classes=True)
    card = certified(shape=source.pixels.shape[1:], classes=source.classes)
    export(SyntheticImages(source.pixels, source.labels, card), tmp_path / "synthetic", format="npz")
    arguments = [str(tmp_path / "synthetic"), "--real", str(real), "--real-test", str(test), "--protocol", "sinkhorn"]
    arguments += ["--seeds", "1", "--device", "cpu", "--no-inception", "--no-cache"]
    arguments += ["--json", str(tmp_path / "out.json"), "--neighbours", str(tmp_path / "pairs.png")]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert done.exit_code == 0, done.output
    assert "NOT PRIVATE" in done.output
    assert "LR accuracy %" in done.output
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "pairs.png").stat().st_mode) == 0o600
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["notice"].startswith("NOT PRIVATE")
    expected = {"guarantee": "certified", "epsilon": 1.0, "delta": 1e-5, "unit": "image"}
    assert result["measurements"][0]["guarantee"] == expected


def test_an_unknown_protocol_is_explained(tmp_path: Path) -> None:
    path = str(write(tmp_path / "images.npz", 40, 0))
    done = CliRunner().invoke(app, [path, "--real", path, "--real-test", path, "--protocol", "best", "--no-cache"])
    assert done.exit_code == 2
    assert "choose one of sinkhorn, dppm, dpdm, bench" in done.output
