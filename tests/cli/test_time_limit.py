"""``train --time-limit``: every method keeps to it, says what it changed, and a resumed run keeps its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sfumato.cli.train import within_time
from sfumato.data import Images, PrivateImages
from sfumato.methods import Method
from sfumato.methods.dp_diffusion import DPDiffusion
from sfumato.methods.dp_lflow import DPLFlow
from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.dp_mixture import DPMixture
from sfumato.methods.dp_vae import DPVAE
from sfumato.methods.parts.time_budget import settings_for_minutes
from sfumato.privacy import Budget
from sfumato.training.profiling import _OperationCounter
from sfumato.training.run import Run
from steady_machine import OPERATIONS_PER_SECOND, steady_machine

IMAGES = Images(pixels=np.zeros((4, 1, 28, 28), np.uint8), labels=np.array([0, 1, 0, 1]), classes=("a", "b"))
SIZE = {"shape": (1, 8, 8), "classes": 2, "images": 60}


def planned_seconds(method: Method) -> float:
    """How long the method's own steps take on the steady machine."""
    return settings_for_minutes(method, minutes=1e9, **SIZE).seconds


# Steps of all units, so that every step is alike.
@pytest.mark.parametrize(
    "method",
    [
        DPVAE(width=2, sampling_rate=1.0),
        DPMERF(width=2, features=64),
        pytest.param(DPLFlow(couplings=1, hidden=4, sampling_rate=1.0), marks=pytest.mark.long),
    ],
    ids=lambda method: method.name,
)
def test_a_training_keeps_to_its_time_within_a_fifth(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its floating-point operations, at so many in a second: other work on the machine changes nothing."""
    steady_machine(monkeypatch)
    limit = 0.15 * planned_seconds(method)
    found = settings_for_minutes(method, minutes=limit / 60, **SIZE)
    assert found.method != method and " in place of " in found.why
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    private = PrivateImages.from_arrays(images, np.arange(60) % 2, classes=2, declared_size=60)
    with _OperationCounter() as counter:
        found.method.fit(private, Budget(5.0, 1e-5), device="cpu")
    assert 0.8 * limit < counter.operations / OPERATIONS_PER_SECOND < 1.2 * limit


def test_a_method_that_is_fast_enough_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    steady_machine(monkeypatch)
    method = DPMixture.small()
    assert settings_for_minutes(method, minutes=10.0, **SIZE).method == method


def test_what_was_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where nothing is left to shorten, the time is refused, with the one that it takes."""
    steady_machine(monkeypatch)
    with pytest.raises(ValueError, match=r"dp-merf takes about .* give it more than"):
        settings_for_minutes(replace(DPMERF.small(), iterations=700), minutes=1e-9, **SIZE)


def test_too_few_minutes_are_refused_with_the_number_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    steady_machine(monkeypatch)
    limit = 0.05 * planned_seconds(DPVAE(width=2))
    with pytest.raises(ValueError, match=r"dp-vae takes about .* 'sfumato plan' compares"):
        settings_for_minutes(DPVAE(width=2), minutes=limit / 60, **SIZE)


def test_the_number_of_images_must_be_declared(tmp_path: Path) -> None:
    options = {"device": "cpu", "run": Run(tmp_path / "run"), "resume": False}
    with pytest.raises(ValueError, match="--declared-size"):
        within_time(DPMERF(), 1.0, IMAGES, declared_size=None, **options)


def test_a_resumed_run_keeps_the_settings_that_it_began_with(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    begun = replace(DPDiffusion(), steps=37, draws=3)
    run.begin({"parameters": begun.parameters()}, resume=False)
    found = within_time(DPDiffusion(), 1.0, IMAGES, declared_size=500, device="cpu", run=run, resume=True)
    assert found == begun


@pytest.mark.long
def test_it_says_how_long_the_training_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steady_machine(monkeypatch)
    options = {"declared_size": 500, "device": "cpu", "run": Run(tmp_path / "run"), "resume": False}
    found = within_time(DPDiffusion(), 10.0, IMAGES, **options)
    assert isinstance(found, DPDiffusion) and found.steps >= 80 and found.width == 16
    said = " ".join(capsys.readouterr().err.split())
    assert f"{found.steps} private steps" in said and "million rows" in said
