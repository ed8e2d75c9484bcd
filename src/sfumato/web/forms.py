"""The two pages with a form, filled in with what was chosen before: after a refusal nothing has to be typed again."""

from __future__ import annotations

import itertools

from starlette.requests import Request
from starlette.responses import HTMLResponse

from sfumato.web import commands, contents
from sfumato.web.choices import EPSILONS, PURPOSES, Choices, Form, proposed_fields, training_fields
from sfumato.web.jobs import Job, Jobs
from sfumato.web.plans import method_rows, plan_facts, plans
from sfumato.web.rendering import INSIDE, page, stops, stops_json
from sfumato.web.workspace import NotThere, Refused, Workspace


class Forms:
    """Renders the form for a plan and the form for a training."""

    def __init__(self, workspace: Workspace, jobs: Jobs) -> None:
        self.workspace, self.jobs = workspace, jobs

    def collection(
        self, request: Request, name: str, *, fields: Form | None = None, refusal: str | None = None
    ) -> HTMLResponse:
        """What is in a collection, and the form for a plan."""
        found = contents.collection(self.workspace, self.jobs, name)
        inspection, bound = found.inspection, found.bound
        if inspection is not None and not fields:
            unit, delta = (None, None) if bound is None else (bound.unit, bound.delta)
            fields = proposed_fields(inspection, unit=unit, delta=delta)
        fields = fields or {}
        columns = [f"--{key}={fields[field]}" for key, field in _COLUMNS.items() if fields.get(field)]
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
        limit = choices.epsilon if collection.spending is None else collection.spending.limit
        usual = {"run": f"{collection.name.rpartition('-')[0]}-{found.id[9:15]}", "hold_out": "on"}
        return page(
            request,
            "plan.html.jinja",
            status=200 if refusal is None else 400,
            banner=INSIDE,
            job=found,
            back=back,
            refusal=refusal,
            choices=choices,
            collection=collection,
            methods=method_rows(rows),
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


_COLUMNS = {"image-column": "image_column", "label-column": "label_column"}


def address_of_choices(job: Job) -> str | None:
    """The address of the form for a plan with the choices of a job."""
    return f"/collections/{job.collection}?choices={job.id}" if job.choices and job.collection else None


def _stop(text: str) -> int:
    """A stop of the slider; the first purpose's where the field has none."""
    usual = EPSILONS.index(PURPOSES[0].epsilon)
    return int(text) if text.isascii() and text.isdigit() and int(text) < len(EPSILONS) else usual
