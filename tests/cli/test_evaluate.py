"""The command reads files, says NOT PRIVATE, writes JSON for the owner, and explains what is wrong."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from release.cards import certified
from sfumato.cli.console import console
from sfumato.cli.main import main
from sfumato.data.images import read
from sfumato.evaluation.results import EvaluationResult
from sfumato.release import SyntheticImages
from sfumato.release.export import export


def write(path: Path, count: int, seed: int) -> Path:
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    images = random.integers(0, 120, size=(count, 12, 12), dtype=np.uint8)
    images[labels == 1, :, :6] += 100
    np.savez(path, images=images, labels=labels)
    return path


def evaluate(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(console, "width", 160)
    monkeypatch.setattr(sys, "argv", ["sfumato", "evaluate", *words])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_run_from_an_export_to_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, test = (write(tmp_path / f"{name}.npz", 40, seed) for seed, name in enumerate(("train", "test")))
    source = read(write(tmp_path / "source.npz", 40, 2), infer_classes=True)
    card = certified(shape=source.pixels.shape[1:], classes=source.classes)
    export(SyntheticImages(source.pixels, source.labels, card), tmp_path / "synthetic", format="npz")
    words = [str(tmp_path / "synthetic"), "--real", str(real), "--real-test", str(test), "--protocol", "sinkhorn"]
    words += ["--seeds", "1", "--device", "cpu", "--no-inception", "--no-cache"]
    words += ["--json", str(tmp_path / "out.json"), "--neighbours", str(tmp_path / "pairs.png")]
    words += ["--side-by-side", str(tmp_path / "beside")]
    assert evaluate(monkeypatch, *words) == 0
    printed = capsys.readouterr()
    assert "NOT PRIVATE" in printed.err and "LR accuracy, % ↑" in printed.out
    assert stat.S_IMODE((tmp_path / "out.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "pairs.png").stat().st_mode) == 0o600
    beside = [tmp_path / "beside" / name for name in ("real.png", "synthetic.png")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in beside] == [0o600] * 2
    sizes = {Image.open(path).size for path in beside}
    assert len(sizes) == 1 and beside[0].read_bytes() != beside[1].read_bytes()
    result = EvaluationResult.from_json(json.loads((tmp_path / "out.json").read_text()))
    assert result.measurements[0].guarantee == card.summary()


def test_real_images_are_read_in_the_size_of_the_synthetic_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, test = (write(tmp_path / f"{name}.npz", 40, seed) for seed, name in enumerate(("train", "test")))
    source = read(write(tmp_path / "source.npz", 40, 2), infer_classes=True, size=8)
    card = certified(shape=(1, 8, 8), classes=source.classes)
    export(SyntheticImages(source.pixels, source.labels, card), tmp_path / "synthetic")
    words = [str(tmp_path / "synthetic"), "--real", str(real), "--real-test", str(test), "--seeds", "1"]
    assert evaluate(monkeypatch, *words, "--device", "cpu", "--no-inception", "--no-cache") == 0
    assert "synthetic [40], real train 40" in capsys.readouterr().out


def test_an_unknown_protocol_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path / "images.npz", 40, 0))
    assert evaluate(monkeypatch, path, "--real", path, "--real-test", path, "--protocol", "best", "--no-cache") == 2
    assert "choose one of sinkhorn, dppm, dpdm" in capsys.readouterr().err


def test_on_a_cpu_the_fast_form_is_the_default_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(write(tmp_path / f"{name}.npz", 40, seed)) for seed, name in enumerate(("real", "test", "synthetic"))]
    words = [names[2], "--real", names[0], "--real-test", names[1], "--device", "cpu", "--no-cache"]
    assert evaluate(monkeypatch, *words, "--json", str(tmp_path / "found.json")) == 0
    told = capsys.readouterr().err.splitlines()
    found = EvaluationResult.from_json(json.loads((tmp_path / "found.json").read_text()))
    assert found.seeds == (0,) and any("Inception network" in one.reason for one in found.left_out)
    assert any("--seeds 5 --inception" in line for line in told)
    shown = [int(line.split()[1]) for line in told if line.startswith("evaluating: ")]
    assert shown == sorted(shown) and shown[-1] == 100 and len(shown) > 5
    first = next(place for place, line in enumerate(told) if line.startswith("synthetic: LR accuracy"))
    assert any(line.startswith("evaluating: ") for line in told[first:])
