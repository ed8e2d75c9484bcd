"""The forms that start, stop or continue something. Each writes a job down and leads to its page."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from sfumato.privacy import Budget, Ledger
from sfumato.web import commands, contents
from sfumato.web.choices import Choices, Form, column_options, export_options, limit_option, run_name
from sfumato.web.jobs import ACTIVE, FINAL, Job, Jobs
from sfumato.web.plans import plan_facts, plans
from sfumato.web.reviews import review_commands
from sfumato.web.security import UPLOAD
from sfumato.web.upload import Limits, receive, unpack
from sfumato.web.workspace import Refused, Workspace

DEVICE = "device"
JOBS_AT_ONCE = 20


def action_routes(workspace: Workspace, jobs: Jobs, limits: Limits) -> APIRouter:
    """Every address that a form is sent to."""
    actions = Actions(workspace, jobs, limits)
    router = APIRouter()
    routes: dict[str, Callable[..., Any]] = {
        "/collections": actions.choose,
        "/collections/{name}/plan": actions.plan,
        "/plans/{job}/train": actions.train,
        "/jobs/{job}/stop": actions.stop,
        "/jobs/{job}/resume": actions.resume,
        "/runs/{name}/review": actions.review,
        "/runs/{name}/audit": actions.audit,
        "/runs/{name}/export": actions.export,
        UPLOAD: actions.upload,
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

    def __init__(self, workspace: Workspace, jobs: Jobs, limits: Limits) -> None:
        self.workspace, self.jobs, self.limits = workspace, jobs, limits

    def choose(self, request: Request) -> Response:
        """Choose a collection by its path, and inspect it."""
        form = _form(request)
        return _to(f"/jobs/{self._inspect(form.get('path', ''), column_options(form)).id}")

    async def upload(self, request: Request) -> Response:
        """Take a zip, unpack it below ``uploads`` and inspect it."""
        uploads = self.workspace.folder / "uploads"
        archive = uploads / f".{secrets.token_hex(8)}.zip"
        name = unquote(request.headers.get("x-file-name", ""))[:200]
        try:
            await receive(request.stream(), archive, self.limits)
            folder = await run_in_threadpool(unpack, archive, name, uploads, self.limits)
        except Refused as error:
            return JSONResponse({"error": str(error)}, 400)
        finally:
            archive.unlink(missing_ok=True)
        job = await run_in_threadpool(self._inspect, str(folder))
        return JSONResponse({"next": f"/jobs/{job.id}"})

    def _inspect(self, text: str, columns: Sequence[str] = ()) -> Job:
        self._check_number()
        path = self.workspace.inside(text)
        name = self.workspace.add_collection(path)
        title = f"What is in {path.name}"
        address = f"/collections/{name}"
        return self.jobs.start("inspect", title, [commands.inspect(path, columns)], collection=name, next=address)

    def plan(self, request: Request, name: str) -> Response:
        """The plan of every method for what was chosen; it is there at once."""
        self._check_number()
        found = contents.collection(self.workspace, self.jobs, name)
        if found.inspection is None:
            raise Refused("the collection was not inspected yet")
        choices = Choices.from_form(_form(request), self.workspace)
        facts = plan_facts(choices, found.inspection)
        job = self.jobs.record(
            "plan",
            f"Plans for {found.path.name} at ε {choices.epsilon:g}",
            [commands.plan(facts)],
            plans(facts),
            collection=name,
            choices=choices.to_json(),
            next="/plans/{job}",
        )
        return _to(job.next)

    def train(self, request: Request, job: str) -> Response:
        """A training of the method that was chosen from a plan; it waits until device and ledger are free."""
        self._check_number()
        form, planned = _form(request), self.jobs.find(job)
        if planned.kind != "plan" or planned.collection is None:
            raise Refused("a training starts from a plan")
        choices, name = Choices.from_json(planned.choices), run_name(form, self.workspace)
        if any(one.run == name and self.jobs.state(one.id) in ACTIVE for one in self.jobs.all()):
            raise Refused(f"a run {name} is waiting or running; choose another name")
        path, run = self.workspace.collection(planned.collection), self.workspace.named("runs", name)
        self.workspace.check_collection(path)
        ledger = self.workspace.ledger(planned.collection)
        training = commands.train(path, run, ledger, choices, form)
        started = self.jobs.start(
            "train",
            f"Training {name}",
            [training, commands.report(run)],
            locks=(DEVICE, f"ledger-{planned.collection}"),
            collection=planned.collection,
            run=name,
            prepared=self._limit(ledger, choices, form),
            choices=planned.choices,
            next=f"/runs/{name}",
        )
        return _to(f"/jobs/{started.id}")

    def _limit(self, ledger: Path, choices: Choices, form: Form) -> list[list[str]]:
        """Create the collection's ledger with its limit, if this is the first training; the command that does so."""
        limit = limit_option(form)
        if ledger.exists() or limit is None:
            return []
        if limit < choices.epsilon:
            raise Refused("the limit of the collection is less than the ε of this training")
        Ledger(ledger, Budget(epsilon=limit, delta=choices.delta, unit=choices.unit)).close()  # type: ignore[arg-type]
        return [commands.create_ledger(ledger, choices, limit)]

    def stop(self, job: str) -> Response:
        """Stop a job as Ctrl-C does; a training keeps its checkpoint."""
        self.jobs.stop(job)
        return _to(f"/jobs/{job}")

    def resume(self, job: str) -> Response:
        """Go on with a job that has stopped or failed: the same commands, the training with --resume."""
        self._check_number()
        found = self.jobs.find(job)
        if self.jobs.state(job) not in FINAL:
            raise Refused("this job is still running")
        again = self.jobs.start(
            found.kind,
            found.title,
            [commands.resumed(command, self.workspace) for command in found.commands],
            locks=found.locks,
            collection=found.collection,
            run=found.run,
            choices=found.choices,
            next=found.next,
        )
        return _to(f"/jobs/{again.id}")

    def review(self, name: str) -> Response:
        """Measure accuracy and memorisation."""
        run = self._finished(name)
        found = review_commands(self.workspace, run)
        if found is None:
            raise Refused("the page does not know the collection of this run, or it is not there any more")
        return self._about_run("review", f"Review of {name}", found, run)

    def audit(self, name: str) -> Response:
        """Run the audits of a finished release."""
        run = self._finished(name)
        return self._about_run("audit", f"Audits of {name}", commands.audit(run.path), run)

    def export(self, request: Request, name: str) -> Response:
        """Write synthetic images as files."""
        count, format = export_options(_form(request))
        run = self._finished(name)
        number = sum(job.kind == "export" and job.run == name for job in self.jobs.all()) + 1
        out = self.workspace.named("exports", f"{name}-{number}")
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
            collection=None if run.job is None else run.job.collection,
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
