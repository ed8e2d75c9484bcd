"""``train --minutes``: which method can use it, what it says, and that a resumed run keeps its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sfumato.cli.train import for_minutes
from sfumato.data import Images
from sfumato.methods.dp_diffusion import DPDiffusion
from sfumato.methods.dp_merf import DPMERF
from sfumato.training.run import Run
from steady_machine import steady_machine

IMAGES = Images(pixels=np.zeros((4, 1, 28, 28), np.uint8), labels=np.array([0, 1, 0, 1]), classes=("a", "b"))


def test_it_is_refused_for_other_methods_and_without_a_declared_size(tmp_path: Path) -> None:
    options = {"device": "cpu", "run": Run(tmp_path / "run"), "resume": False}
    with pytest.raises(ValueError, match="dp-merf has fixed steps"):
        for_minutes(DPMERF(), 1.0, IMAGES, declared_size=500, **options)
    with pytest.raises(ValueError, match="--declared-size"):
        for_minutes(DPDiffusion(), 1.0, IMAGES, declared_size=None, **options)


def test_a_resumed_run_keeps_the_settings_that_it_began_with(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    begun = replace(DPDiffusion(), steps=37, draws=3)
    run.begin({"parameters": begun.parameters()}, resume=False)
    found = for_minutes(DPDiffusion(), 1.0, IMAGES, declared_size=500, device="cpu", run=run, resume=True)
    assert found == begun


@pytest.mark.long
def test_it_says_how_long_the_training_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steady_machine(monkeypatch)
    options = {"declared_size": 500, "device": "cpu", "run": Run(tmp_path / "run"), "resume": False}
    found = for_minutes(DPDiffusion(), 10.0, IMAGES, **options)
    assert isinstance(found, DPDiffusion) and found.steps >= 80 and found.width == 16
    said = " ".join(capsys.readouterr().err.split())
    assert f"{found.steps} private steps" in said and "million rows" in said
