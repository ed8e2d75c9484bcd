"""The engine: experiments of a TOML file run by the command, continued, limited in time, and written as results."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from sfumato.cli.experiment import _without_paths
from sfumato.cli.main import main
from sfumato.experiments.datasets import DatasetLocator, datasets
from sfumato.experiments.layout import in_order, lay_out
from sfumato.experiments.results import ResultSet, load_results
from sfumato.experiments.runner import Progress, run_tasks
from sfumato.experiments.spec import read_experiments
from sfumato.experiments.training import Trial

ROOT = Path(__file__).parents[2]
SMALL = """
[small]
method = "dp-merf"
data = ["digits"]
epsilon = [3]
trainings = 2
records = 100
images = 40
feature_images = 40
classifiers = ["LR"]
measures = ["agreement"]
parameters = { features = 64, width = 2, iterations = 20, batch_size = 20, count_noise = 5 }

[real]
method = "real"
data = ["digits"]
trainings = 2
records = 100
images = 40
feature_images = 40
protocols = ["dppm"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace('["LR"]', '["CNN"]'))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sfumato", "experiment", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.long
def test_an_experiment_runs_and_continues(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept = tmp_path / "out", tmp_path / "results"
    words = ["run", str(file), "--only", "small", "--out", str(out), "--device", "cpu", "--results", str(kept)]
    # No time: nothing is started, and the command says so.
    assert run(monkeypatch, *words, "--time-limit", "-1") == 1
    assert "NotStarted" in capsys.readouterr().err
    assert ResultSet.load(out / "small.json").rows == ()
    assert run(monkeypatch, *words) == 0
    result = ResultSet.load(kept / "small.json")
    assert result == ResultSet.load(out / "small.json") and result.failed == {}
    [row] = result.rows
    assert (row.method, row.unit, row.epsilon, row.delta) == ("dp-merf", "image", 3.0, 1e-5)
    assert row.spent is not None and row.spent <= 3.0
    assert row.parameters["features"] == 64 and row.images == 40
    assert row.data.name == "digits" and row.data.records == 100 and len(row.data.sha256 or "") == 64
    assert len(row.values["CNN"].values) == 2 and row.values["CNN"].std is not None
    assert 0 <= row.values["label agreement"].mean <= 100
    assert "MLP" not in row.values and "FID" not in row.values
    assert len(row.log_sha256 or "") == 64 and row.seconds and row.peak_memory
    assert result.provenance.command.startswith("sfumato experiment run small.toml --only small")
    assert str(tmp_path) not in json.dumps(result.to_json()).replace(str(kept), "")
    assert len(list(out.glob("small/*.png"))) == 1

    capsys.readouterr()
    assert run(monkeypatch, *words) == 0
    assert "1 of" not in capsys.readouterr().err, "a finished training is not run again"
    assert run(monkeypatch, *words, "--set", "features=32") == 2
    assert "another set" in capsys.readouterr().err
    assert run(monkeypatch, "show", "small", "--results", str(kept)) == 0
    shown = capsys.readouterr().out
    assert "label agreement" in shown and "commit" in shown


@pytest.mark.long
def test_real_images_are_an_experiment(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", str(file), "--only", "real", "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert run(monkeypatch, *words) == 0
    [row] = ResultSet.load(tmp_path / "out" / "real.json").rows
    assert row.setting == "real training data" and row.method is None and row.protocol == "dppm"
    assert row.epsilon is None  # no ε at all, which is not an ε of 0
    assert len(row.values["CNN"].values) == 2 and row.spent is None


def test_a_misspelt_word_is_named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookupError, match="did you mean 'small'"):
        read_experiments(file, only=["smal"])
    file.write_text(SMALL.replace("trainings", "trainigs", 1))
    with pytest.raises(ValueError, match="did you mean 'trainings'"):
        read_experiments(file)


def test_the_documentation_s_experiments_can_be_laid_out(tmp_path: Path) -> None:
    """Every dataset, method, parameter and sampling variant exists."""
    for number_, path in enumerate(sorted((ROOT / "experiments").glob("*.toml"))):
        here = tmp_path / str(number_)
        here.mkdir()
        for name in ("mnist", "fashion-mnist"):
            (here / name).mkdir()
        (here / "celeba").mkdir()
        for dataset in datasets().values():
            if dataset.train.startswith("celeba/celeba-") and not dataset.substitute:
                (here / dataset.train).touch()
                (here / dataset.test).touch()
        locator = DatasetLocator.of([str(here)])
        for experiment in read_experiments(path):
            layout = lay_out(experiment, locator=locator, out=here / "out", device="cpu")
            trials = [task for task in in_order([layout]) if isinstance(task, Trial)]
            assert [trial.training.number for trial in trials] == sorted(trial.training.number for trial in trials)
            for trial in trials:
                for variant in trial.variants:
                    method = trial.training.method
                    type(method).configured({**method.parameters(), **variant.parameters})
                unit = trial.conditions.unit
                assert ("person_column" in trial.conditions.data.options) == (unit == "person")


class Written:
    """A task that leaves a file, or fails."""

    def __init__(self, path: Path, *, fails: bool = False) -> None:
        self.path, self.fails = path, fails

    def __str__(self) -> str:
        return self.path.name

    def finished(self) -> bool:
        return self.path.exists()

    def run(self) -> None:
        if self.fails:
            raise ValueError("it does")
        self.path.write_text(str(time.time()))


@pytest.mark.long
def test_tasks_run_in_processes_and_one_failure_stops_no_other(tmp_path: Path) -> None:
    tasks = [Written(tmp_path / f"{number}", fails=number == 1) for number in range(3)]
    seen: list[Progress] = []
    assert run_tasks(tasks, jobs=2, report=seen.append) == {"1": "ValueError: it does"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
    assert [progress.done for progress in seen] == [1, 2, 3] and seen[0].total == 3
    assert run_tasks([tasks[0], tasks[2]], jobs=2, report=seen.append) == {} and len(seen) == 3


def test_a_recorded_command_names_files_of_the_repository_from_its_root(tmp_path: Path) -> None:
    file, out = str(ROOT / "experiments" / "small.toml"), str(tmp_path)
    words = ["run", file, "--data", f"mnist={tmp_path}/mnist", "--out", out]
    shown = ["run", "experiments/small.toml", "--data", "mnist=mnist", "--out", tmp_path.name]
    assert _without_paths(words) == shown


def test_result_files_survive_a_round_trip() -> None:
    """Also those with superseded rows, without ε and of other arithmetic."""
    known = load_results(ROOT / "docs" / "results")
    assert len(known) > 50
    for result in known.values():
        assert ResultSet.from_json(json.loads(json.dumps(result.to_json()))) == result
