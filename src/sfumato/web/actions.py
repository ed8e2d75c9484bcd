"""The forms that start, stop or continue something. Each writes a job down and leads to its page."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from sfumato.options import AS_IT_IS, ReadingOptions
from sfumato.web import commands, contents
from sfumato.web.commands import Choices, Form, export_options, persons_of, reading_of, run_name
from sfumato.web.contents import check_choices, check_training, new_limit, plan_facts, plans, review_commands
from sfumato.web.jobs import ACTIVE, FINAL, Job, Jobs
from sfumato.web.pages import Forms
from sfumato.web.workspace import NotThere, Refused, Workspace

DEVICE = "device"
JOBS_AT_ONCE = 20


def action_routes(workspace: Workspace, jobs: Jobs) -> APIRouter:
    """Every address that a form is sent to."""
    actions = Actions(workspace, jobs)
    router = APIRouter()
    routes: dict[str, Callable[..., Any]] = {
        "/collections": actions.choose,
        "/collections/{name}/plan": actions.plan,
        "/plans/{job}/train": actions.train,
        "/jobs/{job}/stop": actions.stop,
        "/jobs/{job}/resume": actions.resume,
        "/runs/{name}/review": actions.review,
        "/runs/{name}/audit": actions.audit,
        "/runs/{name}/report": actions.report,
        "/runs/{name}/export": actions.export,
    }
    for address, handler in routes.items():
        router.add_api_route(address, handler, methods=["POST"], response_model=None)
    return router


def _form(request: Request) -> Form:
    """The fields of the form, which the guard has read and checked."""
    form: Form = request.state.form
    return form


def _to(address: str) -> Response:
    return RedirectResponse(address, 303)


class Actions:
    """Turns forms into jobs."""

    def __init__(self, workspace: Workspace, jobs: Jobs) -> None:
        self.workspace, self.jobs = workspace, jobs
        self.forms = Forms(workspace, jobs)
        self._starting = threading.Lock()

    def choose(self, request: Request) -> Response:
        """Choose a collection by its path, and inspect it."""
        form = _form(request)
        return _to(f"/jobs/{self._inspect(form.get('path', ''), persons_of(reading_of(form, self.workspace))).id}")

    def _inspect(self, text: str, reading: ReadingOptions = AS_IT_IS) -> Job:
        self._check_number()
        path = self.workspace.inside(text)
        name = self.workspace.add_collection(path)
        title = f"What is in {path.name}"
        address = f"/collections/{name}"
        return self.jobs.start("inspect", title, [commands.inspect(path, reading)], collection=name, next=address)

    def plan(self, request: Request, name: str) -> Response:
        """The plan of every method for what was chosen; it is there at once unless persons must be counted first."""
        form = _form(request)
        try:
            return _to(self._planned(form, name))
        except (Refused, NotThere) as error:
            return self.forms.collection(request, name, fields=form, refusal=str(error))

    def _planned(self, form: Form, name: str) -> str:
        self._check_number()
        found = contents.collection(self.workspace, self.jobs, name)
        if found.inspection is None:
            raise Refused("the collection was not inspected yet")
        choices = Choices.from_form(form, self.workspace)
        check_choices(found, choices)
        inspection = contents.inspection_with_persons(self.jobs, name, choices.reading)
        if inspection is None:
            command = commands.inspect(found.path, persons_of(choices.reading))
            title, kept = f"The persons in {found.path.name}", choices.to_json()
            job = self.jobs.start("inspect", title, [command], collection=name, choices=kept, next="/plans/{job}")
            return f"/jobs/{job.id}"
        facts = plan_facts(choices, inspection)
        job = self.jobs.record(
            "plan",
            f"Plans for {found.path.name} at ε {choices.epsilon:g}",
            [commands.plan(facts)],
            plans(facts),
            collection=name,
            choices=choices.to_json(),
            next="/plans/{job}",
        )
        return job.next

    def train(self, request: Request, job: str) -> Response:
        """A training of the method that was chosen from a plan; it waits until device and ledger are free."""
        form = _form(request)
        planned = self.forms.planned(job)
        try:
            with self._starting:
                return _to(f"/jobs/{self._trained(form, planned).id}")
        except (Refused, NotThere) as error:
            return self.forms.plan(request, job, fields=form, refusal=str(error))

    def _trained(self, form: Form, planned: Job) -> Job:
        self._check_number()
        choices, name = Choices.from_json(planned.choices), run_name(form, self.workspace)
        if any(one.run == name and self.jobs.state(one.id) in ACTIVE for one in self.jobs.all()):
            raise Refused(f"a run {name} is waiting or running; choose another name")
        collection = contents.collection(self.workspace, self.jobs, str(planned.collection))
        path, run = collection.path, self.workspace.named("runs", name)
        self.workspace.check_collection(path)
        ledger = self.workspace.ledger(collection.name)
        check_choices(collection, choices)
        limit = new_limit(collection, choices, form)
        check_training(collection, run, ledger, choices, form)
        # The ledger is made when the training starts: a training that never starts should bind nobody to its limit.
        created = [] if limit is None else [commands.create_ledger(ledger, choices, limit)]
        return self.jobs.start(
            "train",
            f"Training {name}",
            [*created, commands.train(path, run, ledger, choices, form), commands.report(run, side_by_side=True)],
            locks=(DEVICE, f"ledger-{collection.name}"),
            collection=collection.name,
            run=name,
            choices=planned.choices,
            next=f"/runs/{name}",
        )

    def stop(self, job: str) -> Response:
        """Stop a job as Ctrl-C does; a training keeps its checkpoint."""
        self.jobs.stop(job)
        return _to(f"/jobs/{job}")

    def resume(self, job: str) -> Response:
        """Go on with a job that has stopped or failed: what is left of its commands, the training with --resume."""
        with self._starting:
            self._check_number()
            found = self.jobs.find(job)
            if self.jobs.state(job) not in FINAL:
                raise Refused("this job is still running")
            if self.jobs.state(job) == "done":
                return _to(found.next)
            if (later := self.jobs.later(found)) is not None:
                raise Refused("a later job does this already", back=f"/jobs/{later.id}")
            left = commands.remaining(found.commands, self.jobs.finished_commands(job), self.workspace)
            if not left:
                return _to(found.next)
            again = self.jobs.start(
                found.kind,
                found.title,
                left,
                locks=found.locks,
                collection=found.collection,
                run=found.run,
                choices=found.choices,
                next=found.next.replace(found.id, "{job}"),
            )
        return _to(f"/jobs/{again.id}")

    def report(self, name: str) -> Response:
        """Write the public and the internal page of a finished release again."""
        run = self._finished(name)
        return self._about_run("report", f"Pages of {name}", [commands.report(run.path)], run)

    def review(self, name: str) -> Response:
        """Measure accuracy and memorisation."""
        run = self._finished(name)
        found = review_commands(self.workspace, run)
        if found is None:
            raise Refused("the collection of this run is not below the folders that the page may use, or not any more")
        return self._about_run("review", f"Review of {name}", found, run)

    def audit(self, name: str) -> Response:
        """Run the audits of a finished release."""
        run = self._finished(name)
        return self._about_run("audit", f"Audits of {name}", commands.audit(run.path), run)

    def export(self, request: Request, name: str) -> Response:
        """Write synthetic images as files."""
        count, format = export_options(_form(request))
        run = self._finished(name)
        taken = {str(commands.output_folder(job.commands[0])) for job in self.jobs.all() if job.kind == "export"}
        places = (self.workspace.named("exports", f"{name}-{number}") for number in itertools.count(1))
        out = next(place for place in places if str(place) not in taken and not place.exists())
        found = [commands.export(run.path, out, count, format)]
        return self._about_run("export", f"{count:,} images of {name}", found, run, next=f"/runs/{name}/release")

    def _about_run(
        self, kind: str, title: str, found: list[list[str]], run: contents.RunSummary, *, next: str = ""
    ) -> Response:
        self._check_number()
        job = self.jobs.start(
            kind,
            title,
            found,
            locks=() if kind == "export" else (DEVICE,),
            collection=run.collection,
            run=run.name,
            choices=None if run.job is None else run.job.choices,
            next=next or f"/runs/{run.name}",
        )
        return _to(f"/jobs/{job.id}")

    def _finished(self, name: str) -> contents.RunSummary:
        run = contents.run(self.workspace, self.jobs, name)
        if run.card is None:
            raise Refused("this run has no release yet")
        return run

    def _check_number(self) -> None:
        if sum(self.jobs.state(job.id) in ACTIVE for job in self.jobs.all()[:200]) >= JOBS_AT_ONCE:
            raise Refused(f"{JOBS_AT_ONCE} jobs are waiting or running; wait until one has ended")
