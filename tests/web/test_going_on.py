"""What "Go on" and "Try again" do: the commands that are left, once, and by the latest job alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfumato.files import write_json
from sfumato.web.commands import report
from sfumato.web.jobs import Job
from web.live import Answer, Live, live
from web.still import finish, inspected, jobs_of, planned, started, without_workers
from web.test_jobs import wait_for


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    without_workers(monkeypatch)
    with live(tmp_path) as running:
        yield running


def training(server: Live) -> Job:
    plan = planned(server, inspected(server)).headers["Location"]
    return job_at(server, started(server, plan, {"run": "one"}))


def job_at(server: Live, answer: Answer) -> Job:
    assert answer.status == 303, answer.text
    return jobs_of(server).find(answer.headers["Location"].rpartition("/")[2])


def go_on(server: Live, job: Job) -> Answer:
    return server.post(f"/jobs/{job.id}/resume", {})


def test_a_training_that_was_stopped_while_its_pages_were_written_writes_them_again(server: Live) -> None:
    job = training(server)
    run = server.folder / "runs" / "one"
    (run / "release").mkdir(parents=True)
    finish(jobs_of(server), job, "stopped", number=2)
    assert "Write the pages again" in server.get(f"/jobs/{job.id}").text
    assert job_at(server, go_on(server, job)).commands == (tuple(report(run, side_by_side=True)),)


def test_a_training_whose_worker_disappeared_at_its_end_is_not_repeated(server: Live) -> None:
    job = training(server)
    (server.folder / "runs" / "one" / "release").mkdir(parents=True)
    finish(jobs_of(server), job, "interrupted", number=1)
    assert [command[0] for command in job_at(server, go_on(server, job)).commands] == ["report"]


def test_a_training_that_had_begun_goes_on_and_one_that_had_not_starts_with_its_ledger(server: Live) -> None:
    job = training(server)
    finish(jobs_of(server), job, "stopped")
    again = job_at(server, go_on(server, job))
    assert again.commands == job.commands
    write_json(_new(server.folder / "runs" / "one" / "internal") / "run.json", {}, private=True)
    finish(jobs_of(server), again, "stopped", number=1, code=130)
    last = job_at(server, go_on(server, again))
    assert [command[0] for command in last.commands] == ["train", "report"] and "--resume" in last.commands[0]


def test_a_review_that_failed_does_not_sample_again(server: Live) -> None:
    jobs = jobs_of(server)
    samples = server.folder / "runs" / "one" / "internal" / "samples"
    commands = [("sample", "one", f"--out={samples}"), ("evaluate", str(samples)), ("report", "one")]
    job = jobs.start("review", "Review of one", commands, run="one")
    finish(jobs, job, "failed", number=1, code=1)
    again = job_at(server, go_on(server, job))
    assert again.commands == tuple(commands[1:])
    # Interrupted while the samples were written: they are there as a whole, or not at all.
    other = jobs.start("review", "Review of two", [*commands[:2], ("report", "two")], run="two")
    finish(jobs, other, "interrupted", number=0)
    _new(samples)
    assert [command[0] for command in job_at(server, go_on(server, other)).commands] == ["evaluate", "report"]


def test_only_the_latest_job_of_a_run_goes_on(server: Live) -> None:
    job = training(server)
    finish(jobs_of(server), job, "stopped", number=1, code=130)
    later = job_at(server, go_on(server, job))
    for state in ("running", "stopped", "done"):
        finish(jobs_of(server), later, state, worker={"pid": 1, "started": 0})
        refused = go_on(server, job)
        assert refused.status == 400 and f"/jobs/{later.id}" in refused.text
    text = server.get(f"/jobs/{job.id}").text
    assert f"/jobs/{later.id}" in text and f"/jobs/{job.id}/resume" not in text


def test_a_job_that_is_done_is_not_repeated(server: Live) -> None:
    planned(server, inspected(server))
    plan = next(job for job in jobs_of(server).all() if job.kind == "plan")
    assert go_on(server, plan).headers["Location"] == plan.next
    assert len([job for job in jobs_of(server).all() if job.kind == "plan"]) == 1


def test_an_inspection_for_a_plan_that_is_tried_again_leads_to_its_own_plan(server: Live) -> None:
    job = job_at(server, planned(server, inspected(server), unit="person", person_column="who"))
    finish(jobs_of(server), job, "failed", number=0, code=1)
    again = job_at(server, go_on(server, job))
    assert again.commands == job.commands and again.next == f"/plans/{again.id}" and again.choices == job.choices


def test_the_choices_of_a_failed_training_are_kept(server: Live) -> None:
    plan = planned(server, inspected(server), size="16", skip_bad="on", epsilon_stop="5").headers["Location"]
    wanted = {"run": "one", "settings": "features=50", "method": "dp-merf", "limit": "9"}
    job = job_at(server, started(server, plan, wanted))
    finish(jobs_of(server), job, "failed", number=1, code=2)
    text = server.get(f"/jobs/{job.id}").text
    assert f"{plan}?training={job.id}" in text
    form = server.get(f"{plan}?training={job.id}").text
    assert 'value="features=50"' in form and 'name="run" value="one"' in form
    assert 'value="dp-merf" checked' in form and 'name="hold_out">' in form and 'value="9.0"' in form
    _new(server.folder / "runs" / "one")
    assert 'name="run" value="one-2"' in server.get(f"{plan}?training={job.id}").text
    choices = server.get(f"/collections/{job.collection}?choices={job.id}").text
    assert 'name="size" inputmode="numeric" value="16"' in choices
    assert 'name="skip_bad" checked' in choices and 'step="1" value="5"' in choices


def test_nothing_is_left_out_that_nobody_has_ticked(server: Live) -> None:
    """Of an inspection only what it suggests is in the form, and it suggests to leave out nothing."""
    name = inspected(server, bad_images=7, unlabelled=9, next_command="sfumato train d --skip-bad --no-labels")
    page = server.get(f"/collections/{name}").text
    for box in ("skip_bad", "no_labels", "missing_labels"):
        assert f'name="{box}"' in page and not re.search(f'name="{box}"[^>]*checked', page)
    assert 'name="classes" value="10"' in page
    job = job_at(
        server, started(server, planned(server, name).headers["Location"], {"run": "one", "method": "dp-merf"})
    )
    assert not [word for word in job.commands[-2] if word.startswith(("--skip-bad", "--no-labels", "--missing-labels"))]


@pytest.mark.long
def test_a_worker_says_how_many_commands_have_ended_well(tmp_path: Path) -> None:
    with live(tmp_path) as server:
        jobs = jobs_of(server)
        quick = ("methods", "--help")
        failed = jobs.start("review", "failed", [quick, ("no-such-command",), quick])
        wait_for(lambda: jobs.state(failed.id) == "failed")
        assert jobs.finished_commands(failed.id) == 1


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
