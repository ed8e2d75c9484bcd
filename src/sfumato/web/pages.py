"""The pages that show something, and those with a form; a banner on each says whether what it shows may leave."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from sfumato.options import ReadingOptions
from sfumato.planning.plan import too_few_counted
from sfumato.release.pages import page_environment, render
from sfumato.release.plain_numbers import factor_text, guess_by_definition, level, of_hundred
from sfumato.release.release import chosen_device
from sfumato.report.pages import TEMPLATES as REPORT_TEMPLATES
from sfumato.web import commands, contents
from sfumato.web.commands import EPSILONS, FORMATS, PURPOSES, Choices, Form, proposed_fields, training_fields
from sfumato.web.contents import method_rows, plan_facts, plans, review_commands
from sfumato.web.jobs import FINAL, Job, Jobs
from sfumato.web.security import DOCUMENT_POLICY
from sfumato.web.workspace import NotThere, Refused, Workspace, exports_of, holds, read_json

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
_STYLES = ("style.css.jinja", "chart.css.jinja", "rows.css.jinja")
PLAIN = ("plain", "ON THIS MACHINE", "Nothing on this page was computed from the images.")
INSIDE = ("inside", "INSIDE ONLY", "This page shows facts about private data. Nothing on it may leave.")
MAY_LEAVE = ("leave", "MAY LEAVE", "What is marked so follows from the release alone. The rest stays inside.")
MIXED = ("inside", "INSIDE ONLY", "Only what is marked “may leave” may leave; the rest of this page may not.")


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page for the browser that asked."""
    csrf = getattr(request.state, "csrf", "")
    text = render(template, folders=(TEMPLATES, REPORT_TEMPLATES), csrf=csrf, path=request.url.path, **values)
    return HTMLResponse(text, status)


@cache
def style_sheet() -> str:
    """The styles of the report pages, of their charts, and of this page."""
    environment = page_environment(REPORT_TEMPLATES)
    parts = [environment.get_template(name).render() for name in _STYLES]
    return "\n".join([*parts, (STATIC / "web.css").read_text(encoding="utf-8")])


@dataclass(frozen=True)
class Stop:
    """A stop of the ε slider, in plain numbers that are rounded to the side that promises less."""

    epsilon: float
    factor: str
    level: str
    right: int


def stops(delta: float = 1e-5) -> list[Stop]:
    """What each ε of the slider means for one unit, by (ε, δ) alone."""
    return [
        Stop(one, factor_text(one), level(one).name, of_hundred(guess_by_definition(one, delta))) for one in EPSILONS
    ]


def stops_json() -> str:
    """The same for the script."""
    return json.dumps([[f"{one.epsilon:g}", one.factor, one.level, one.right] for one in stops()])


class Forms:
    """Renders the form for a plan and the form for a training."""

    def __init__(self, workspace: Workspace, jobs: Jobs) -> None:
        self.workspace, self.jobs = workspace, jobs

    def collection(
        self, request: Request, name: str, *, fields: Form | None = None, refusal: str | None = None
    ) -> HTMLResponse:
        found = contents.collection(self.workspace, self.jobs, name)
        inspection, bound = found.inspection, found.bound
        if inspection is not None and not fields:
            unit, delta = (None, None) if bound is None else (bound.unit, bound.delta)
            fields = proposed_fields(inspection, unit=unit, delta=delta)
        fields = fields or {}
        columns = ReadingOptions(image_column=fields.get("image_column"), label_column=fields.get("label_column"))
        return page(
            request,
            "collection.html.jinja",
            status=200 if refusal is None else 400,
            banner=INSIDE,
            collection=found,
            inspection=inspection,
            refusal=refusal,
            fields=fields,
            command_line=commands.line(commands.inspect(found.path, columns)),
            purposes=[(one, EPSILONS.index(one.epsilon)) for one in PURPOSES],
            stops=stops(),
            stops_json=stops_json(),
            proposed=_stop(fields.get("epsilon_stop", "")),
            runs=[run for run in contents.runs(self.workspace, self.jobs) if run.collection == name],
        )

    def plan(
        self, request: Request, job: str, *, fields: Form | None = None, refusal: str | None = None
    ) -> HTMLResponse:
        """The plan of every method, and the form that starts a training."""
        found = self.planned(job)
        collection = contents.collection(self.workspace, self.jobs, str(found.collection))
        choices = Choices.from_json(found.choices)
        back = address_of_choices(found)
        if found.kind == "plan":
            rows, lines = self.jobs.output(job), found.command_lines
        else:
            facts = plan_facts(choices, self.jobs.output(job), back=back)
            rows, lines = plans(facts), [commands.line(commands.plan(facts))]
        device = str(chosen_device())
        offered, others = method_rows(rows, device)
        limit = choices.epsilon if collection.spending is None else collection.spending.limit
        usual = {"run": f"{collection.name.rpartition('-')[0]}-{found.id[9:15]}", "hold_out": "on"}
        return page(
            request,
            "plan.html.jinja",
            status=200 if refusal is None else 400,
            banner=PLAIN,
            job=found,
            back=back,
            refusal=refusal,
            choices=choices,
            collection=collection,
            methods=offered,
            others=others,
            device="the GPU of this machine" if device == "cuda" else "one CPU core",
            fields={"limit": f"{max(limit or 0, choices.epsilon):g}", **(fields or usual)},
            command_lines=lines,
        )

    def planned(self, job: str) -> Job:
        """The job that a plan was made with: a plan, or an inspection that has counted the persons for one."""
        found = self.jobs.find(job)
        if found.kind not in ("plan", "inspect") or not found.choices or found.collection is None:
            raise NotThere("there is no such plan")
        if self.jobs.state(job) != "done":
            raise Refused("this job has not finished")
        return found

    def plan_of(self, training: Job) -> str | None:
        """The address of the plan from which a training was started, with the choices of that training."""
        for job in self.jobs.all():
            same = job.collection == training.collection and job.choices == training.choices
            if same and job.id < training.id and job.kind in ("plan", "inspect") and self.jobs.state(job.id) == "done":
                return f"/plans/{job.id}?training={training.id}"
        return None

    def fields_of(self, training: str) -> dict[str, str]:
        """The fields of the form from which a training was started, with another name if its run has begun."""
        found = self.jobs.find(training)
        run = found.run or "run"
        names = itertools.chain([run], (f"{run}-{number}" for number in itertools.count(2)))
        free = next(name for name in names if not (self.workspace.folder / "runs" / name).exists())
        return training_fields(found.commands, free)


def address_of_choices(job: Job) -> str | None:
    """The address of the form for a plan with the choices of a job."""
    return f"/collections/{job.collection}?choices={job.id}" if job.choices and job.collection else None


def _stop(text: str) -> int:
    """A stop of the slider; the first purpose's where the field has none."""
    usual = EPSILONS.index(PURPOSES[0].epsilon)
    return int(text) if text.isascii() and text.isdigit() and int(text) < len(EPSILONS) else usual


_SECOND = 1.0
_LISTED = 1000
ABOUT = {
    "inspect": "Every image is opened once and counted. Nothing is spent, and nothing leaves.",
    "train": "The training asks for noisy answers about the collection; each is on the ledger before it is given.",
    "review": "Classifiers learn from synthetic and from real images, and both are compared. The result stays inside.",
    "audit": "The method is replayed and attacked on drawn images; no private data is read. This may take minutes.",
    "report": "The pages are written again; the public one is scanned for what may not leave. Nothing is spent.",
    "export": "Images are drawn from the release. No private data is read, so it costs no privacy.",
}
"""What a job does, for the people who wait for it."""


def page_routes(workspace: Workspace, jobs: Jobs) -> APIRouter:
    """Every address that is read."""
    pages = Pages(workspace, jobs)
    router = APIRouter()
    routes: dict[str, Callable[..., Any]] = {
        "/": pages.overview,
        "/browse": pages.browse,
        "/collections/{name}": pages.collection,
        "/plans/{job}": pages.plan,
        "/jobs/{job}": pages.job,
        "/jobs/{job}/events": pages.events,
        "/runs/{name}": pages.run,
        "/runs/{name}/release": pages.release,
        "/runs/{name}/documents/{document}": pages.document,
        "/static/web.css": pages.styles,
        "/static/web.js": pages.script,
    }
    for address, handler in routes.items():
        router.add_api_route(address, handler, methods=["GET"], response_model=None)
    return router


class Pages:
    """Reads the workspace and renders it."""

    def __init__(self, workspace: Workspace, jobs: Jobs) -> None:
        self.workspace, self.jobs, self.forms = workspace, jobs, Forms(workspace, jobs)
        self._views: dict[str, tuple[float, dict[str, Any]]] = {}

    def overview(self, request: Request) -> HTMLResponse:
        """Collections with the budget that is left, runs, and what is running."""
        jobs, found = self.jobs.all(), contents.collections(self.workspace, self.jobs)
        return page(
            request,
            "overview.html.jinja",
            banner=PLAIN,
            roots=self.workspace.roots,
            collections=found,
            runs=contents.runs(self.workspace, self.jobs),
            jobs=[(job, self.jobs.state(job.id)) for job in jobs[:20]],
            web_command=commands.line(["web", *(f"--root={root}" for root in self.workspace.roots)]),
            ledger_commands=[commands.line(["ledger", str(one.spending.path)]) for one in found if one.spending],
        )

    def browse(self, request: Request, path: str = "") -> HTMLResponse:
        """A folder below the roots."""
        folder = self.workspace.inside(path) if path else self.workspace.roots[0]
        if not folder.is_dir():
            folder = folder.parent
        above = folder.parent if folder not in self.workspace.roots else None
        entries = self.workspace.entries(folder)
        return page(
            request,
            "browse.html.jinja",
            banner=INSIDE,
            folder=folder,
            command_line=commands.line(commands.inspect(folder)),
            above=above,
            holds=holds(folder),
            entries=entries[:_LISTED],
            more=max(0, len(entries) - _LISTED),
            roots=self.workspace.roots,
        )

    def collection(self, request: Request, name: str, choices: str = "") -> HTMLResponse:
        """What is in a collection, and the form for a plan, with the choices of a job if one is named."""
        before = self.jobs.find(choices).choices if choices else None
        return self.forms.collection(request, name, fields=Choices.from_json(before).to_form() if before else None)

    def plan(self, request: Request, job: str, training: str = "") -> HTMLResponse:
        """The plan of every method, and the form that starts a training, with the fields of one if it is named."""
        return self.forms.plan(request, job, fields=self.forms.fields_of(training) if training else None)

    def job(self, request: Request, job: str) -> HTMLResponse:
        """The progress of a job, with what stops it or lets it go on."""
        found = self.jobs.find(job)
        view = contents.job_view(self.jobs, found)
        return page(
            request,
            "job.html.jinja",
            banner=INSIDE,
            job=found,
            view=view,
            final=view["state"] in FINAL,
            later=self.jobs.later(found),
            back=address_of_choices(found),
            plan=self.forms.plan_of(found) if found.kind == "train" else None,
            writes_pages=[one[0] for one in found.commands[self.jobs.finished_commands(job) :]] == ["report"],
            about=ABOUT.get(found.kind),
            collection_path=next(iter(found.commands[0][1:]), ""),
        )

    async def events(self, request: Request, job: str) -> StreamingResponse:
        """The progress of a job as server-sent events, at most one a second, until it has ended."""
        found = self.jobs.find(job)

        async def stream() -> AsyncIterator[str]:
            ended = False
            while not ended and not await request.is_disconnected():
                view = self._view(found)
                ended = view["ended"]
                yield f"data: {json.dumps(view)}\n\n"
                await asyncio.sleep(_SECOND)

        return StreamingResponse(stream(), media_type="text/event-stream")

    def _view(self, job: Job) -> dict[str, Any]:
        """The view of a job, read at most once a second however many streams there are."""
        now = time.monotonic()
        kept = self._views.get(job.id)
        if kept is None or now - kept[0] > _SECOND / 2:
            if len(self._views) > 100:
                self._views.clear()
            kept = self._views[job.id] = (now, contents.job_view(self.jobs, job))
        return kept[1]

    def run(self, request: Request, name: str) -> HTMLResponse:
        """The review of a run: everything that only the custodian may see."""
        found = contents.run(self.workspace, self.jobs, name)
        related = [(job, self.jobs.state(job.id)) for job in self.jobs.all() if job.run == name]
        review = review_commands(self.workspace, found)
        return page(
            request,
            "run.html.jinja",
            banner=MIXED,
            run=found,
            verdict=None if found.card is None else too_few_counted(found.card),
            related=related,
            has_evaluation=(found.path / "internal" / "evaluation.json").is_file(),
            has_internal=(found.path / "internal" / "internal.html").is_file(),
            has_public=(found.path / "public.html").is_file(),
            audit=read_json(found.path / "audit.json"),
            review_commands=[commands.line(one) for one in review or ()],
            audit_commands=[commands.line(one) for one in commands.audit(found.path)],
        )

    def release(self, request: Request, name: str) -> HTMLResponse:
        """What may leave: the public page and exported images; and the ledger's entry, which stays."""
        found = contents.run(self.workspace, self.jobs, name)
        if found.card is None:
            raise NotThere("this run has no release yet")
        ledger = contents.ledger_of(self.workspace, found)
        sentence = contents.ledger_sentence(ledger, found.card)
        return page(
            request,
            "release.html.jinja",
            banner=MAY_LEAVE,
            run=found,
            card=found.card,
            formats=FORMATS,
            has_public=(found.path / "public.html").is_file(),
            exports=[
                (job, self.jobs.state(job.id)) for job in self.jobs.all() if job.kind == "export" and job.run == name
            ],
            downloads=exports_of(self.workspace, name),
            exports_folder=self.workspace.folder / "exports",
            ledger_sentence=sentence,
            spending=contents.spending_or_none(ledger),
            report_command=commands.line(commands.report(found.path)),
            ledger_command=commands.line(commands.show_ledger(ledger or Path("LEDGER"), found.path)),
        )

    def document(self, name: str, document: str) -> Response:
        """A page that a command wrote into the run's folder, without scripts, for the frame of another page."""
        found = self.workspace.named("runs", name)
        files: dict[str, Path] = {
            "public.html": found / "public.html",
            "internal.html": found / "internal" / "internal.html",
        }
        if document not in files or not files[document].is_file():
            raise NotThere("there is no such page")
        text = self.workspace.inside(str(files[document])).read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"Content-Security-Policy": DOCUMENT_POLICY})

    def styles(self) -> Response:
        return PlainTextResponse(style_sheet(), media_type="text/css")

    def script(self) -> Response:
        return PlainTextResponse((STATIC / "web.js").read_text(encoding="utf-8"), media_type="text/javascript")
