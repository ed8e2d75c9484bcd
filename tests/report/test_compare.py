"""A comparison by the command itself: killed, continued, and read by the browser."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from browser import DESKTOP, PHONE, Browser
from report.finished import TEST, TRAIN, write_npz
from sfumato.cli.main import main
from sfumato.data import PrivateImages
from sfumato.experiments.spec import Conditions, DataSpec, EvaluationSpec, TrainingSpec
from sfumato.experiments.training import train_release
from sfumato.methods import DPMERF, METHODS, find
from sfumato.privacy import Block, Budget, Ledger, SubsampledGaussian
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.interfaces import Started
from sfumato.report.comparison import _spent, chosen_methods, composed_epsilon
from sfumato.report.scan import scan
from sfumato.training.run import Run

SMALL = ["features=64", "width=2", "iterations=60", "batch_size=20", "count_noise=5"]


def words(folder: Path) -> list[str]:
    data, test = (write_npz(folder / f"{name}.npz", images) for name, images in (("train", TRAIN), ("test", TEST)))
    words = [sys.executable, "-m", "sfumato", "compare", str(data), "--test", str(test), "--classes", "10"]
    words += ["--methods", "dp-merf", "--epsilon", "3", "--seeds", "2", "--out", str(folder / "out")]
    words += ["--images", "60", "--no-inception", "--device", "cpu", "--jobs", "2", "--json"]
    return words + [word for setting in SMALL for word in ("--set", setting)]


def answered(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> int:
    """The exit status of the same command in this process, which has torch loaded already."""
    monkeypatch.setattr(sys, "argv", ["sfumato", *command[3:]])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.long
def test_a_comparison_that_was_killed_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, out = words(tmp_path), tmp_path / "out"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(out.glob("runs/*/*/*/ledger.jsonl")):
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    [before] = out.glob("runs/*/*/*/ledger.jsonl")
    assert not list(out.glob("runs/*/*/*/internal/evaluation.json"))
    assert not (out / "comparison.json").exists()

    # No wait: the workers of a killed command must be gone, or the ledger would still be locked.
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert again.returncode == 0, again.stderr
    assert "2 runs: together they will cost" in again.stderr
    result = json.loads(again.stdout)
    assert result == json.loads((out / "comparison.json").read_text())
    assert result["notice"].startswith("NOT PRIVATE") and result["failed"] == {}

    real, row = result["rows"]
    assert real["setting"] == "real training data" and row["method"] == "dp-merf" and row["spent"] <= 3.0
    assert all(len(value["values"]) == 2 and value["std"] is not None for value in row["values"].values())
    assert {"LR", "MLP", "CNN"} <= set(row["values"]) and {"LR", "MLP", "CNN"} <= set(real["values"])
    assert row["seconds"] > 0 and row["peak_memory"] > 2**26

    ledgers = [Ledger.read(path) for path in out.glob("runs/*/*/*/ledger.jsonl")]
    # Where the kill took an answer that was charged, the run was begun once more, and both count.
    lost = list(out.glob("runs/*/*/*.lost-*"))
    assert len(ledgers) == 2 + len(lost) and result["title"].startswith(f"{len(ledgers)} runs queried")
    assert before.exists() and len(Ledger.read(before).runs()) == 1
    together = epsilon([event for ledger in ledgers for event in ledger.events()], 1e-5)
    told = float(result["title"].partition("together ε = ")[2].split()[0])
    assert together <= told <= together * 1.01
    assert max(ledger.spent() for ledger in ledgers) < together

    for run in out.glob("runs/*/*/run-?"):
        assert scan(run) == []
        rows = {one["row"] for one in json.loads((run / "internal" / "evaluation.json").read_text())["measurements"]}
        assert rows == {"synthetic", "real training data", "real half against real half", "uniform noise"}

    heads = [ledger.head for ledger in ledgers]
    assert answered(monkeypatch, command) == 0
    assert "1 of" not in capsys.readouterr().err
    assert [Ledger.read(path).head for path in out.glob("runs/*/*/*/ledger.jsonl")] == heads

    with Browser() as browser:
        for size in (PHONE, DESKTOP):
            visit = browser.open(out / "comparison.html", size)
            assert visit.problems == [] and visit.requests == [(out / "comparison.html").resolve().as_uri()]
            assert browser.run("document.documentElement.scrollWidth", visit.session) == size[0]
            assert browser.run("document.images.length", visit.session) == 1
            assert "NOT PRIVATE" in browser.run("document.body.innerText", visit.session)
            assert len(browser.screenshot(visit)) > 10_000

    assert answered(monkeypatch, [*command, "--delta", "1e-6"]) == 2
    assert "holds a comparison with another delta" in capsys.readouterr().err


def test_a_run_whose_answer_is_lost_is_begun_again_and_still_counted(tmp_path: Path) -> None:
    method = DPMERF.small()
    training = TrainingSpec(method, 3.0, 0)
    conditions = Conditions(DataSpec("d", Path("d")), (EvaluationSpec("sinkhorn", 60),), "cpu", tmp_path)
    begun = Run(training.folder(tmp_path))
    budget = Budget(3.0, 1e-5)
    asked = {"method": "dp-merf", "parameters": method.parameters(), "budget": budget.to_json()}
    usual = {"ledger": str(begun.ledger), "seed": None, "declared_size": None, "max_images_per_unit": 16}
    begun.begin({**asked, **usual}, resume=False)
    with contextlib.closing(Ledger(begun.ledger, budget)) as ledger:
        facts = {"parameters": method.parameters(), "plan": method.plan(budget).to_json()}
        run = ledger.start_run(method="dp-merf", variant="certified", seeded=False, facts=facts)
        key = bytes(32)
        collection = f"{key.hex()} {PrivateImages.from_images(TRAIN).fingerprint(key)}"
        begun.checkpoint.start(Started(run, 0, ledger.id, *ledger.head, collection))
        ledger.reserve(run, method.plan(budget).events)
        ledger.charge(run, method.plan(budget).events[0])
    train_release(training, conditions, TRAIN)
    assert (begun.folder / "release" / "card.json").exists()
    [lost] = begun.folder.parent.glob("run-0.lost-1")
    assert Ledger.read(lost / "ledger.jsonl").spent() > 0
    told = _spent(conditions)
    assert told.startswith("2 runs") and float(told.partition("together ε = ")[2].split()[0]) > 3.0


def test_all_means_every_method_in_its_certified_form() -> None:
    found = chosen_methods("all", [])
    assert [method.name for method in found] == [name for name in METHODS if find(name).certified_variants()]
    assert all(method.variant in method.certified_variants() for method in found)


def test_settings_go_to_the_methods_that_take_them() -> None:
    for setting in ("features=64", "dp-merf.features=64"):
        [method] = chosen_methods("dp-merf", [setting])
        assert method.parameters()["features"] == 64
    for names, setting, told in (
        ("dp-merf", "nonsense=1", "none of the compared methods"),
        ("dp-merf", "dp-other.features=1", "none of the compared methods"),
        ("dp-merf", "features", "key=value"),
        ("dp-merf:raw", "features=64", "no certified variant 'raw'"),
        ("dp-merv", "features=64", "did you mean 'dp-merf'"),
    ):
        with pytest.raises((ValueError, LookupError), match=told):
            chosen_methods(names, [setting])


def test_runs_over_shards_and_others_have_a_total() -> None:
    """Under replacement all of it together would have none."""
    plain = SubsampledGaussian("sum", (Block("sum", 0.05),))
    dealt = SubsampledGaussian("shards", (Block("shards", 1.0),), shards=5)
    assert math.isinf(epsilon([plain, dealt], 1e-5))
    apart = epsilon([plain], 5e-6) + epsilon([dealt], 5e-6)
    assert composed_epsilon([plain, dealt], 1e-5) == pytest.approx(apart) and math.isfinite(apart)
    assert composed_epsilon([plain], 1e-5) == epsilon([plain], 1e-5)
