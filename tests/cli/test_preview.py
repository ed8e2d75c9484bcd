"""Samples of a training that is under way: from its checkpoint alone, for the owner alone, and a reason where none."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from PIL import Image

from cli.commands import run_here
from privacy.test_runs import KillAfter, Killed
from report.finished import TRAIN
from sfumato.data import PrivateImages
from sfumato.methods.dp2_vae import DP2VAE
from sfumato.methods.dp_vae import DPVAE
from sfumato.methods.preview import preview
from sfumato.privacy import NoGuarantee
from sfumato.training.run import Run


def begun(folder: Path) -> Run:
    run = Run(folder)
    run.begin({"method": "dp-vae", "parameters": DPVAE.small().parameters()}, resume=False)
    run.checkpoint.describe(TRAIN.pixels.shape[1:], TRAIN.classes)
    return run


def test_samples_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "run")
    DPVAE.small().fit(PrivateImages.from_images(TRAIN), NoGuarantee(), run.ledger, checkpoint=run.checkpoint)
    spent = run.ledger.read_bytes()
    assert run_here(monkeypatch, "preview", str(run.folder), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classes"] == list(TRAIN.classes) and (found["part"], found["total"]) == ("training", 2)
    picture = Path(found["picture"])
    assert picture == run.internal / "preview.png" and stat.S_IMODE(picture.stat().st_mode) == 0o600
    width, height = Image.open(picture).size
    assert height > width > 100, "a row for each of ten classes, four in a row"
    assert run.ledger.read_bytes() == spent


def test_without_a_checkpoint_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun(tmp_path / "run")
    assert run_here(monkeypatch, "preview", str(run.folder), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "picture": None,
        "note": "The training has not come to the part 'training' yet, or has not saved it.",
    }
    assert run_here(monkeypatch, "preview", str(run.folder)) == 2 and "has not come to" in capsys.readouterr().err
    assert run_here(monkeypatch, "preview", str(tmp_path)) == 2 and "holds no training" in capsys.readouterr().err


def test_samples_while_a_later_query_is_still_to_come(tmp_path: Path) -> None:
    """DP²-VAE asks for its prior when the training has ended."""
    run, method = Run(tmp_path / "run"), DP2VAE.small()
    run.checkpoint.describe(TRAIN.pixels.shape[1:], TRAIN.classes)
    with pytest.raises(Killed):
        private, killed = PrivateImages.from_images(TRAIN), KillAfter(method.steps, "training")
        method.fit(private, NoGuarantee(), run.ledger, checkpoint=run.checkpoint, progress=killed)
    found = preview(method, run.checkpoint)
    assert (found.part, found.done) == ("training", method.steps) and found.images.std() > 0
