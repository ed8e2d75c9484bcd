"""A training that does not fit its collection's ledger is refused in the form; one that never starts binds nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image

from cli.commands import run_here
from sfumato.data import read
from sfumato.planning.expected_use import PublicFacts
from sfumato.planning.plan import choose_method, plan_all
from sfumato.privacy import Block, Budget, Ledger, SubsampledGaussian
from sfumato.web.commands import EPSILONS
from sfumato.web.workspace import Workspace
from web.live import Live, live
from web.still import FOUND, finish, inspected, jobs_of, ledger_at, planned, started, without_workers
from web.test_jobs import wait_for

ONE = PublicFacts(declared_size=1, size=28, classes=10, epsilon=1.0)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    without_workers(monkeypatch)
    with live(tmp_path) as running:
        yield running


def charge(path: Path, budget: Budget) -> None:
    with Ledger(path, budget) as ledger:
        run = ledger.start_run(method="dp-merf", variant="certified", seeded=False)
        event = SubsampledGaussian("sum", (Block("sum", noise_multiplier=8.0),))
        ledger.reserve(run, [event])
        ledger.charge(run, event)


def test_the_form_has_the_unit_and_delta_of_the_ledger_and_refuses_others(server: Live) -> None:
    collection = inspected(server)
    charge(ledger_at(server, collection), Budget(epsilon=4, delta=1.25e-6, unit="person"))
    text = server.get(f"/collections/{collection}").text
    assert 'name="delta" value="1.25e-06"' in text and 'value="person" checked' in text
    before = len(jobs_of(server).all())
    refused = planned(server, collection, classes="a,b")
    assert refused.status == 400 and "counts per person at δ 1.25e-06" in refused.text
    assert 'name="classes" value="a,b"' in refused.text  # nothing has to be typed again
    assert len(jobs_of(server).all()) == before


def test_delta_is_compared_with_the_declared_size_in_the_form(server: Live) -> None:
    refused = planned(server, inspected(server), declared_size="100000")
    assert refused.status == 400 and "choose a smaller δ" in refused.text.lower()
    assert planned(server, inspected(server), declared_size="99999").status == 303


def test_a_training_that_the_ledger_cannot_pay_is_refused_before_it_is_a_job(server: Live) -> None:
    collection = inspected(server)
    plan = planned(server, collection).headers["Location"]
    charge(ledger_at(server, collection), Budget(epsilon=1, delta=1e-5))
    refused = started(server, plan, {"run": "second", "settings": "features=50"})
    assert refused.status == 400 and "limit is 1" in refused.text
    assert 'name="run" value="second"' in refused.text and 'value="features=50"' in refused.text
    assert not [job for job in jobs_of(server).all() if job.kind == "train"]


def test_what_cannot_be_planned_is_refused_in_the_form(server: Live) -> None:
    for fields, reason in [
        ({"run": "a", "settings": "feature=3"}, "has no parameter"),
        ({"run": "a", "method": "no-such"}, "no-such"),
        ({"run": "a", "limit": "0.5"}, "less than the ε 1"),
    ]:
        plan = planned(server, inspected(server)).headers["Location"]
        refused = started(server, plan, fields)
        assert refused.status == 400 and reason in refused.text
        assert not [job for job in jobs_of(server).all() if job.kind == "train"]


def test_the_ledger_is_made_by_the_job_and_a_failed_start_leaves_the_choice_open(server: Live) -> None:
    collection = inspected(server)
    plan = planned(server, collection).headers["Location"]
    address = started(server, plan, {"run": "first", "limit": "3"}).headers["Location"]
    ledger = ledger_at(server, collection)
    job = jobs_of(server).find(address.rpartition("/")[2])
    assert not ledger.exists()
    assert job.commands[0] == ("ledger", str(ledger), "--create", "--epsilon=3.0", "--delta=1e-05", "--unit=image")
    finish(jobs_of(server), job, "failed", number=1, code=2)
    # The job has made the ledger, and its training has failed before anything was charged.
    Ledger(ledger, Budget(epsilon=3, delta=1e-5)).close()
    assert planned(server, collection, delta="1e-6").status == 303
    assert 'name="limit"' in server.get(plan).text and 'value="3"' in server.get(plan).text
    assert started(server, plan, {"run": "second", "limit": "2"}).status == 303


def test_only_a_ledger_without_a_charge_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert Ledger.discard_if_unused(path)
    with Ledger(path, Budget(epsilon=1, delta=1e-5)) as ledger:
        ledger.start_run(method="dp-merf", variant="certified", seeded=False)
        assert not Ledger.discard_if_unused(path)  # it is being written
    assert Ledger.discard_if_unused(path) and not list(tmp_path.iterdir())
    charge(path, Budget(epsilon=1, delta=1e-5))
    assert not Ledger.discard_if_unused(path) and Ledger.read(path).events()
    path.write_text("no ledger")
    assert not Ledger.discard_if_unused(path) and path.exists()


def test_a_job_keeps_a_ledger_with_charges(tmp_path: Path) -> None:
    with live(tmp_path) as server:
        path = ledger_at(server, "x")
        charge(path, Budget(epsilon=4, delta=1e-5))
        create = ("ledger", str(path), "--create", "--epsilon=9", "--delta=1e-5", "--unit=image")
        jobs = jobs_of(server)
        job = jobs.start("train", "second", [create, ("methods", "--help")])
        wait_for(lambda: jobs.state(job.id) == "done")
        assert Ledger.read(path).limit == Budget(epsilon=4, delta=1e-5)
        assert "whose limit stays" in "".join(jobs.log(job.id))


def test_the_command_refuses_before_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, ledger = tmp_path / "unreadable", tmp_path / "ledger.jsonl"
    data.write_text("no collection")
    charge(ledger, Budget(epsilon=1, delta=1e-5))
    words = ["train", str(data), "--method", "dp-merf", f"--ledger={ledger}", f"--out={tmp_path / 'run'}"]
    assert run_here(monkeypatch, *words, "--epsilon=1") == 2
    assert "the ledger's limit is 1" in capsys.readouterr().err
    assert run_here(monkeypatch, *words, "--epsilon=0.1", "--delta=1e-6") == 2
    assert "one ledger has one unit" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_plans_for_persons_count_their_images(server: Live) -> None:
    collection = inspected(server)
    persons = {"unit": "person", "person_column": "who"}
    address = planned(server, collection, **persons).headers["Location"]
    jobs = jobs_of(server)
    job = jobs.find(address.rpartition("/")[2])
    assert job.kind == "inspect" and "--person-column=who" in job.commands[0] and job.next == f"/plans/{job.id}"
    found = json.loads((jobs.folder(jobs.all()[-1].id) / "output-0").read_text())
    finish(jobs, job, "done", {**found, "persons": 30})
    text = server.get(job.next).text
    assert "--unit=person --declared-size=30" in text
    assert started(server, job.next, {"run": "persons"}).status == 303
    # The next plan with the same persons is there at once, and one without them uses the first inspection.
    again = planned(server, collection, **persons).headers["Location"]
    assert "-plan-" in again and "--unit=person" in server.get(again).text
    plain = planned(server, collection).headers["Location"]
    assert "-plan-" in plain and "--unit=image" in server.get(plain).text


def test_persons_of_whom_no_image_can_be_read_lead_back_to_the_choices(server: Live) -> None:
    collection = inspected(server)
    address = planned(server, collection, unit="person", person_pattern="(x)").headers["Location"]
    jobs = jobs_of(server)
    job = jobs.find(address.rpartition("/")[2])
    finish(jobs, job, "done", {**jobs.output(jobs.all()[-1].id), "images": 0})
    refused = server.get(job.next)
    back = f"/collections/{collection}?choices={job.id}"
    assert refused.status == 400 and back in refused.text
    assert 'name="person_pattern" value="(x)"' in server.get(back).text


def test_at_most_three_methods_are_offered_and_the_first_is_that_of_the_command_line(server: Live) -> None:
    collection = inspected(server)
    facts = {"declared_size": "3000", "epsilon_stop": str(EPSILONS.index(1.0))}
    text = server.get(planned(server, collection, **facts).headers["Location"]).text
    offered, others = text.partition('id="others"')[::2]
    named = [re.findall(r'name="method" value="([^"]+)"', part) for part in (offered, others)]
    assert 1 <= len(named[0]) <= 3 and set(named[0] + named[1]) == {row.method for row in plan_all(ONE)}
    assert "hopeless" not in offered.partition("<table")[2].partition("</table>")[0]
    chosen = choose_method(PublicFacts(**{**asdict(ONE), "declared_size": 3000}), device="cpu")
    assert named[0][0] == chosen.method and f'value="{chosen.method}" checked' in offered
    assert "GPU" not in text or torch.cuda.is_available()


def test_who_is_protected_is_a_question_where_names_share_parts(server: Live) -> None:
    pattern = {"pattern": "^([^_]+)_", "sentence": "the part before the first _: 30 persons"}
    name = inspected(server, person_patterns=[pattern])
    text = server.get(f"/collections/{name}").text
    radios = re.findall(r'<input type="radio" name="unit"[^>]*>', text)
    assert len(radios) == 3 and not any("checked" in one for one in radios) and "30 persons" in text
    assert "who is protected" in planned(server, name, unit="").text
    address = planned(server, name, unit="person ^([^_]+)_").headers["Location"]
    job = jobs_of(server).find(address.rpartition("/")[2])
    assert "--person-pattern=^([^_]+)_" in job.commands[0]
    finish(jobs_of(server), job, "done", {**FOUND, "person_problem": "2 images name no person"})
    assert "2 images name no person" in server.get(job.next).text


def test_the_folder_of_the_page_is_no_class_of_a_collection_around_it(server: Live) -> None:
    for name in ("cats", "dogs"):
        (server.root / "pets" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(server.root / "pets" / name / "1.png")
    assert "2 classes, 2 images" in server.get("/browse").text
    Workspace.opened([server.root / "pets"])
    assert read(server.root / "pets").classes == ("cats", "dogs")
    assert "2 classes, 2 images" in server.get("/browse").text
