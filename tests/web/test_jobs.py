"""Jobs wait for their locks in order, can be stopped while they wait, and their state survives whoever asks."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato.cli.console import ProgressFile
from sfumato.web.commands import Choices, method_options, resumed, run_name, train
from sfumato.web.jobs import Jobs, Process
from sfumato.web.workspace import Refused, Workspace

QUICK = ("methods", "--help")


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(Workspace.opened([tmp_path]))


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def has_worker(jobs: Jobs, job: str) -> bool:
    return json.loads((jobs.workspace.folder / "queue" / job).read_text())["worker"] is not None


def test_two_jobs_for_one_device_run_in_order_and_another_does_not_wait(jobs: Jobs) -> None:
    lock = os.open(jobs.workspace.folder / "locks" / "device", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    first = jobs.start("train", "first", [QUICK], locks=["device", "ledger-a"])
    second = jobs.start("train", "second", [QUICK], locks=["device"])
    third = jobs.start("train", "third", [QUICK], locks=["ledger-a"])
    free = jobs.start("inspect", "free", [QUICK], locks=["ledger-b"])
    wait_for(lambda: jobs.state(free.id) == "done" and has_worker(jobs, third.id) and has_worker(jobs, second.id))
    assert [jobs.state(job.id) for job in (first, second, third)] == ["queued"] * 3
    jobs.stop(third.id)
    wait_for(lambda: jobs.state(third.id) == "stopped")
    os.close(lock)
    wait_for(lambda: jobs.state(second.id) == "done")
    # A server that is started later reads the same.
    again = Jobs(jobs.workspace)
    assert again.state(first.id) == "done" and [job.title for job in again.all()] == [
        "free",
        "third",
        "second",
        "first",
    ]
    ends = [json.loads((jobs.folder(job.id) / "status.json").read_text())["ended"] for job in (first, second)]
    assert ends[0] < ends[1]
    assert "Usage" in (jobs.folder(first.id) / "output-0").read_text()


def test_a_failing_command_ends_the_job_and_its_message_is_kept(jobs: Jobs) -> None:
    job = jobs.start("train", "wrong", [("no-such-command",), QUICK])
    wait_for(lambda: jobs.state(job.id) == "failed")
    assert any("no-such-command" in line for line in jobs.log(job.id))
    assert not (jobs.folder(job.id) / "output-1").exists()


def test_a_job_whose_worker_disappears_is_interrupted(jobs: Jobs) -> None:
    lock = os.open(jobs.workspace.folder / "locks" / "device", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    job = jobs.start("train", "killed", [QUICK], locks=["device"])
    wait_for(lambda: has_worker(jobs, job.id))
    worker = json.loads((jobs.folder(job.id) / "status.json").read_text())["worker"]
    os.kill(worker["pid"], signal.SIGKILL)
    wait_for(lambda: jobs.state(job.id) == "interrupted")
    assert not Process(os.getpid(), 1).alive and Process.of(os.getpid()).alive
    os.close(lock)


def test_values_of_a_form_cannot_become_options_paths_or_code(tmp_path: Path) -> None:
    workspace = Workspace.opened([tmp_path])
    form = {"purpose": "publish", "epsilon_stop": "3", "unit": "image", "delta": "1e-5", "colour": ""}
    choices = Choices.from_form({**form, "classes": "--out=/etc,b", "label_column": "--internal"}, workspace)
    command = train(tmp_path, tmp_path / "run", tmp_path / "l", choices, {"method": "dp-merf", "settings": "steps=2"})
    assert "--classes=--out=/etc,b" in command and "--set=steps=2" in command
    assert "--label-column=--internal" in command and "--internal" not in command
    assert Choices.from_json(json.loads(json.dumps(choices.to_json()))) == choices
    for method, settings in (("os:system", ""), ("--help", ""), ("dp-vae", "a=/etc/passwd"), ("dp-vae", "--out=x")):
        with pytest.raises(Refused):
            method_options({"method": method, "settings": settings})
    wrong = {"epsilon_stop": "11", "delta": "0.1", "unit": "person", "persons": "/etc/passwd", "size": "-1"}
    for key, value in {
        **wrong,
        "classes": "a\nb",
        "image_column": "a\0",
        "purpose": "",
        "colour": "x",
        "declared_size": "1e9",
    }.items():
        with pytest.raises(Refused):
            Choices.from_form({**form, key: value}, workspace)
    for name in ("../x", "a/b", "", "-x", "X", "a..b"):
        with pytest.raises(Refused):
            run_name({"run": name}, workspace)


def test_a_training_goes_on_only_if_it_had_begun(tmp_path: Path) -> None:
    workspace = Workspace.opened([tmp_path])
    run = workspace.named("runs", "one")
    command = ("train", "data", f"--out={run}")
    assert resumed(command, workspace) == command
    (run / "internal").mkdir(parents=True)
    (run / "internal" / "run.json").write_text("{}")
    assert resumed(command, workspace) == (*command, "--resume") == resumed((*command, "--resume"), workspace)


def test_the_progress_file_has_public_numbers_only(tmp_path: Path) -> None:
    progress = ProgressFile(tmp_path / "progress.json")
    progress.report("reading the images", 4711, 0, None)
    assert json.loads((tmp_path / "progress.json").read_text()) == {
        "parts": [{"name": "reading the images", "done": 0, "total": 0}],
        "epsilon": None,
    }
    progress.report("training", 5, 10, 0.25)
    progress.report("sampling", 1, 2, None)
    progress.write()
    found = json.loads((tmp_path / "progress.json").read_text())
    assert found["epsilon"] == 0.25 and [part["done"] for part in found["parts"]] == [0, 5, 1]
