"""The command line with real files and real processes, some of them killed."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from torch import nn

from broken_methods import ControlMethod
from sfumato.cli.main import app, main
from sfumato.cli.train import choose, expected_use
from sfumato.methods import METHODS
from sfumato.methods.dp_mixture import DPMixture
from sfumato.planning.expected_use import PublicFacts
from sfumato.privacy import Budget, Curator, Ledger, PrivateRecords, Randomness
from sfumato.training.checkpoint import FolderCheckpoint

SMALL = [
    "--set",
    "features=64",
    "--set",
    "width=2",
    "--set",
    "iterations=5",
    "--set",
    "batch_size=20",
    "--set",
    "count_noise=5",
]


def sfumato(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "sfumato", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=1200, **options)  # type: ignore[call-overload]


def started(*arguments: str | Path | int) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "sfumato", *map(str, arguments)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answered(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the same command in this process, which has torch loaded already."""
    monkeypatch.setattr(sys, "argv", ["sfumato", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "secret-name.npz"
    random_ = np.random.default_rng(0)
    np.savez(path, images=random_.integers(0, 256, (37, 28, 28), dtype=np.uint8), labels=np.arange(37) % 3)
    return path


@pytest.mark.long
def test_train_sample_and_ledger(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = sfumato("train", data, "--method", "dp-merf", "--epsilon", 3, "--out", run, "--classes", 3, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "at most a factor" in done.stdout and "generator: 5 of 5" in done.stderr
    assert sorted(path.name for path in run.iterdir() if "ledger" not in path.name) == ["internal", "release"]
    assert not (run / "internal" / "checkpoint").exists()
    cost = json.loads((run / "internal" / "cost.json").read_text())
    assert cost["seconds"] > 0 and cost["processor_seconds"] > 0

    card = json.loads((run / "release" / "card.json").read_text())
    assert card["guarantee"] == "certified" and card["epsilon"] <= 3
    everything = "".join(path.read_text(errors="ignore") for path in (run / "release").iterdir())
    assert "secret-name" not in everything + done.stdout + (run / "ledger.jsonl").read_text()
    assert "--set features=64" in card["command"] and " DATA " in card["command"]

    drawn = sfumato("sample", run, "--count", 12, "--out", tmp_path / "images", "--format", "npz")
    assert drawn.returncode == 0, drawn.stderr
    assert np.load(tmp_path / "images" / "images.npz")["images"].shape[0] == 12

    shown = sfumato("ledger", run / "ledger.jsonl", "--release", run, "--json")
    facts = json.loads(shown.stdout)
    assert facts["verified"] and facts["holds_release"] and facts["spent"] == card["epsilon"]

    again = sfumato("train", data, "--method", "dp-merf", "--epsilon", 3, "--out", run, "--classes", 3, *SMALL)
    assert again.returncode == 2 and "finished run" in again.stderr


def test_plans_and_lists_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert answered(monkeypatch, "plan", "dp-merf", "--epsilon", "1", "--delta", "1e-5", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert 0.99 <= plan["epsilon"] <= 1 and plan["events"][1]["name"] == "mean embedding"
    assert answered(monkeypatch, "methods", "--json") == 0
    assert {row["method"] for row in json.loads(capsys.readouterr().out)} >= {"dp-merf"}


def test_a_mistake_gets_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (arguments, hint) in enumerate(
        [
            (["plan", "dp-merff", "--epsilon", "1"], "did you mean 'dp-merf'"),
            (["plan", "dp-merf", "--epsilon", "1", "--set", "feature=3"], "did you mean 'features'"),
            (["plan", "dp-merf", "--epsilon", "1", "--set", "features=many"], "must be int"),
            (["plan", "dp-merf", "--epsilon", "-1"], "positive"),
            (["plan", "dp-merf"], "--epsilon"),
            (["plan", "dp-merf", "--epsilon", "1", "--variant", "best"], "no variant 'best'"),
            (["train", "/nowhere", "--method", "dp-merf", "--epsilon", "1", "--out", "OUT"], "error"),
            (["sample", "/nowhere", "--out", "OUT"], "no release"),
            (["ledger", "/nowhere"], "no ledger"),
        ]
    ):
        here = tmp_path / str(number)
        here.mkdir()
        words = [str(here / "out") if word == "OUT" else word for word in arguments]
        assert answered(monkeypatch, *words) == 2
        said = capsys.readouterr().err
        assert hint in said and "Traceback" not in said


def test_a_command_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "command.toml"
    path.write_text('method = "dp-merf"\nepsilon = 2\n\n[set]\nfeatures = 128\nlength_scale = 5.5\n')
    assert answered(monkeypatch, "plan", "--config", str(path), "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"]["features"] == 128 and plan["budget"]["epsilon"] == 2
    assert answered(monkeypatch, "plan", "--config", str(path), "--epsilon", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["budget"]["epsilon"] == 1
    mistakes = {"features = [": "is not TOML", "epsilonn = 1": "did you mean 'epsilon'?", "x = 1": "[set]"}
    for text, hint in mistakes.items():
        path.write_text(text)
        assert answered(monkeypatch, "plan", "--config", str(path)) == 2
        assert hint in capsys.readouterr().err


@pytest.mark.long
def test_a_run_can_be_repeated_from_the_file_it_writes(data: Path, tmp_path: Path) -> None:
    words = ["train", data, "--method", "dp-merf", "--epsilon", 3, "--classes", 3, *SMALL]
    assert sfumato(*words, "--out", tmp_path / "one", "--quiet").returncode == 0
    written = tmp_path / "one" / "internal" / "command.toml"
    assert written.stat().st_mode & 0o077 == 0
    done = sfumato("train", "--config", written, "--out", tmp_path / "two", "--quiet")
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((tmp_path / run / "release" / "card.json").read_text()) for run in ("one", "two"))
    assert one["parameters"] == two["parameters"] and one["command"] == two["command"]


def test_the_old_order_is_refused_with_the_new_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(monkeypatch, "train", "dp-merf", "my images", "--epsilon", "1", "--out", "run") == 2
    assert "sfumato train 'my images' --method dp-merf --epsilon 1 --out run" in capsys.readouterr().err


def test_version_and_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # in the user's own, other tests write and remove files
    assert answered(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("sfumato 0.")
    for words in (["--quiet", "cache", "--json"], ["cache", "--json", "-q"]):
        assert answered(monkeypatch, *words) == 0
        assert json.loads(capsys.readouterr().out)["bytes"] >= 0


def test_every_command_that_prints_a_table_prints_json_too() -> None:
    """The commands whose result is a table, by what their module imports."""
    group = typer.main.get_command(app)
    for name in ("methods", "plan", "ledger", "cache", "compare"):
        command = group.commands[name]  # type: ignore[attr-defined]
        assert any("--json" in parameter.opts for parameter in command.params), name


@pytest.mark.long
def test_a_stopped_run_goes_on_without_paying_twice(data: Path, tmp_path: Path) -> None:
    """Ctrl-C while the generator trains: the answers are kept, the resumed run asks nothing again."""
    run = tmp_path / "run"
    slow = [*SMALL, "--set", "iterations=100000"]
    words = ["train", data, "--method", "dp-merf", "--epsilon", 3, "--out", run, "--classes", 3, *slow]
    process = subprocess.Popen(
        [sys.executable, "-m", "sfumato", *map(str, words)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and a child inherits that.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 600
    while not (run / "internal/checkpoint/answer mean embedding.safetensors").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    # Python ends by the signal itself where it came in the middle of an exec; to a shell both are 130.
    assert process.returncode in (130, -signal.SIGINT) and "--resume" in said
    paid = Ledger.read(run / "ledger.jsonl").events()

    other = sfumato(*words[:-1], "iterations=7", "--resume")
    assert other.returncode == 2 and "another parameters" in other.stderr
    refused = sfumato(*words)
    assert refused.returncode == 2 and "--resume" in refused.stderr
    process = started(*words, "--resume")
    assert process.stderr is not None
    while "generator: " not in process.stderr.readline():
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert Ledger.read(run / "ledger.jsonl").events() == paid


class Resumable(ControlMethod):
    """The control method with a checkpoint, so that it can be resumed."""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, None]:
        model = self.build(curator.shape, len(curator.classes))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for step in curator.steps("train", keep={"model": model, "optimizer": optimizer}):
            self.learn(curator, step, model, self.make_loss()).apply(optimizer)
        return model, None


STEPS = 600  # enough for twenty kills, also where many steps pass before each of them
RESUMABLE = Resumable(steps=STEPS, sampling_rate=0.5)


def train_and_tell(folder: Path) -> None:
    """Trains and writes a byte each time noise is drawn, just before: the count can only be too high."""
    told = os.open(folder / "drawn", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    gaussian = Randomness.gaussian

    def watched(self: Randomness, count: int, device: torch.device, *label: str | int) -> torch.Tensor:
        os.write(told, b"x")
        return gaussian(self, count, device, *label)

    Randomness.gaussian = watched  # type: ignore[method-assign]
    pixels = np.random.default_rng(0).integers(0, 256, (8, 1, 4, 4), dtype=np.uint8)
    private = PrivateRecords(pixels, np.arange(8) % 2, classes=("a", "b"))
    checkpoint = FolderCheckpoint(folder / "checkpoint", seconds=0.02)
    RESUMABLE.fit(private, Budget(3.0, 1e-5), folder / "ledger", checkpoint=checkpoint, device="cpu")
    os._exit(0)


@pytest.mark.long
def test_killed_at_twenty_moments_the_ledger_is_never_short(tmp_path: Path) -> None:
    """kill −9, resume, kill −9, …: every noise that was drawn is on the ledger, and the budget holds at the end."""
    moments = random.Random(4)
    processes = multiprocessing.get_context("fork")
    drawn = tmp_path / "drawn"
    drawn.touch()
    kills, charged = 0, 0
    RESUMABLE.plan(Budget(3.0, 1e-5))  # the children inherit the calibration and need not repeat it
    while charged < STEPS:
        process = processes.Process(target=train_and_tell, args=(tmp_path,))
        goal = drawn.stat().st_size + moments.randrange(0, 8)
        process.start()
        while kills < 20 and process.is_alive() and drawn.stat().st_size <= goal:
            time.sleep(moments.random() * 0.002)
        if kills < 20:
            process.kill()
        process.join(600)
        ledger = Ledger.read(tmp_path / "ledger")
        charged = sum(event.steps for event in ledger.events())  # type: ignore[union-attr]
        assert charged >= drawn.stat().st_size
        assert ledger.spent() <= 3.0
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills == 20 and charged == STEPS
    assert os.stat(tmp_path / "ledger").st_mode & 0o077 == 0


def test_a_hopeless_plan_warns_and_the_card_says_so(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = ["train", str(data), "--classes", "3", "--epsilon", "1", "--out", str(run)]
    assert answered(monkeypatch, *words, "--set", "steps=3") == 2
    assert "--method" in capsys.readouterr().err
    words += ["--method", "dp-merf", *SMALL, "--declared-size", "50", "--note", "purpose=teaching"]
    assert answered(monkeypatch, *words) == 0
    assert "WARNING: expected use hopeless" in capsys.readouterr().err
    card = json.loads((run / "release" / "card.json").read_text())
    assert any("hopeless" in remark for remark in card["remarks"]) and card["notes"] == {"purpose": "teaching"}


def test_a_method_is_chosen_from_public_facts_and_the_reason_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    facts = PublicFacts(declared_size=500, size=28, classes=10, epsilon=1.0)
    assert choose(facts, device="cpu", time_limit=0.5) in METHODS
    assert "Method: " in capsys.readouterr().err


def test_without_a_declared_number_the_card_says_how_many_images_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    facts = PublicFacts(declared_size=10_000, size=28, classes=10, epsilon=1.0)
    [sentence] = expected_use(DPMixture(), facts, declared=False)
    assert "dp-mixture needs about" in sentence and "as predicted from measurements on MNIST" in sentence
    assert "Your number is private and was not compared" in " ".join(capsys.readouterr().err.split())


def test_plan_of_all_methods(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--declared-size", "500", "--size", "28", "--classes", "10", "--epsilon", "1"]
    assert answered(monkeypatch, *words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["expected_use"] for row in rows} == {"hopeless"} and {"dp-merf", "dppm"} <= {r["method"] for r in rows}
    assert answered(monkeypatch, *words, "--unit", "person") == 0
    assert "500 persons" in capsys.readouterr().out
