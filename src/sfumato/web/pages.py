"""The pages that show something. None of them changes anything."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse

from sfumato.web import commands, contents
from sfumato.web.choices import FORMATS, Choices
from sfumato.web.downloads import exports_of
from sfumato.web.forms import Forms, address_of_choices
from sfumato.web.jobs import FINAL, Job, Jobs
from sfumato.web.previews import PICTURE
from sfumato.web.rendering import INSIDE, MAY_LEAVE, MIXED, STATIC, page, style_sheet
from sfumato.web.reviews import review_commands
from sfumato.web.security import DOCUMENT_POLICY
from sfumato.web.workspace import NotThere, Workspace, read_json

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
        f"/jobs/{{job}}/{PICTURE}": pages.preview,
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
            banner=INSIDE,
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
        run = self.workspace.named("runs", found.run) if found.run else None
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
            writes_pages=found.commands[self.jobs.finished_commands(job) :] == (("report", str(run)),),
            about=ABOUT.get(found.kind),
            collection_path=next(iter(found.commands[0][1:]), ""),
            preview_command=commands.line(["preview", str(run)]),
        )

    def preview(self, job: str) -> Response:
        """The picture of a training's first samples."""
        path = self.jobs.folder(job) / PICTURE
        if not path.is_file():
            raise NotThere("there are no samples yet")
        return Response(path.read_bytes(), media_type="image/png")

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
            related=related,
            has_evaluation=(found.path / "internal" / "evaluation.json").is_file(),
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
        """The style sheet."""
        return PlainTextResponse(style_sheet(), media_type="text/css")

    def script(self) -> Response:
        """The script."""
        return PlainTextResponse((STATIC / "web.js").read_text(encoding="utf-8"), media_type="text/javascript")
