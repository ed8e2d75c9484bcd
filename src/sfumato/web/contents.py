"""What the workspace holds: collections with the budget that is left of each, runs and their releases; and plans.

The plans are those of every method for what was chosen, and whether a training fits the ledger of its collection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.methods import find
from sfumato.options import ReadingOptions, words
from sfumato.planning.expected_use import PublicFacts
from sfumato.planning.plan import TIME_LIMIT, MethodPlan, best_of, plan_all
from sfumato.privacy import Budget, BudgetExceeded, Ledger, LedgerDamaged
from sfumato.release.card import Card, rounded_up
from sfumato.report.pages import RunFolder
from sfumato.texts import duration
from sfumato.training.run import Run
from sfumato.web import commands
from sfumato.web.commands import Choices, Form, limit_option, method_options, reading_from_json
from sfumato.web.jobs import ACTIVE, FINAL, Job, Jobs
from sfumato.web.workspace import NotThere, Refused, Workspace, is_name, read_json


@dataclass(frozen=True)
class Spending:
    """The state of a ledger: ε spent, the limit, and what is left of it."""

    path: Path
    spent: float | None
    limit: float | None
    delta: float
    unit: str
    runs: tuple[dict[str, Any], ...]
    charged: bool
    entries: int
    head: str

    @property
    def left(self) -> float | None:
        if self.limit is None or self.spent is None:
            return None
        return max(0.0, self.limit - self.spent)


@dataclass(frozen=True)
class Collection:
    """A collection that was chosen, its inspection and its ledger."""

    name: str
    path: Path
    inspection: dict[str, Any] | None
    spending: Spending | None
    problem: str | None = None
    """Why the ledger cannot be read, if it cannot."""

    @property
    def bound(self) -> Spending | None:
        """The ledger, once something is charged on it; before that the next training may choose another limit."""
        return self.spending if self.spending is not None and self.spending.charged else None


@dataclass(frozen=True)
class RunSummary:
    """A run: its training, its state (of the training, or "damaged"), and its card once it is finished.

    ``facts`` is what the command wrote down when the run was begun; it is there also where the job is not any more.
    """

    name: str
    path: Path
    job: Job | None
    state: str
    card: Card | None
    facts: Mapping[str, Any]
    collection: str | None
    """The name of the collection, if it is one that was chosen in the page."""


def spending(ledger: Path) -> Spending | None:
    """What was spent; ``None`` where there is no ledger yet."""
    try:
        changed = ledger.stat().st_mtime_ns
    except FileNotFoundError:
        return None
    # Accounting takes a moment, and a training changes its ledger in every step.
    now, kept = time.monotonic(), _kept.get(ledger)
    if kept is None or (kept[0] != changed and now - kept[1] > _RENEWED):
        kept = _kept[ledger] = (changed, now, _spending(ledger))
    return kept[2]


_RENEWED = 3.0  # seconds
_kept: dict[Path, tuple[int, float, Spending]] = {}


def spending_or_none(ledger: Path | None) -> Spending | None:
    """What was spent; also ``None`` where the ledger cannot be read."""
    try:
        return None if ledger is None else spending(ledger)
    except LedgerDamaged:
        return None


def _spending(ledger: Path) -> Spending:
    found = Ledger.read(ledger)
    spent, limit = found.spent(), found.limit
    return Spending(
        ledger,
        None if spent == math.inf else rounded_up(spent),
        limit.epsilon if isinstance(limit, Budget) else None,
        limit.delta,
        limit.unit,
        tuple(found.runs()),
        bool(found.events()),
        *found.head,
    )


def collections(workspace: Workspace, jobs: Jobs) -> list[Collection]:
    """Every collection that was chosen and still exists."""
    found = []
    inspections = _inspections(jobs)
    for path in sorted((workspace.folder / "collections").glob("*.json")):
        try:
            found.append(_collection(workspace, path.stem, inspections.get(path.stem)))
        except (NotThere, ValueError):
            continue
    return found


def collection(workspace: Workspace, jobs: Jobs, name: str) -> Collection:
    """The collection of this name."""
    return _collection(workspace, name, _inspections(jobs).get(name))


def inspection_with_persons(jobs: Jobs, name: str, reading: ReadingOptions) -> dict[str, Any] | None:
    """The latest inspection of a collection in which these options said whose image each image is."""
    options = ("--person-column", "--persons", "--person-pattern")
    wanted = sorted(word for word in words(reading) if word.startswith(options))
    for job in jobs.all():
        if job.kind != "inspect" or job.collection != name or jobs.state(job.id) != "done":
            continue
        if sorted(word for word in job.commands[0] if word.startswith(options)) == wanted:
            found: dict[str, Any] = jobs.output(job.id)
            return found
    return None


def _collection(workspace: Workspace, name: str, output: dict[str, Any] | None) -> Collection:
    path = workspace.collection(name)
    try:
        return Collection(name, path, output, spending(workspace.ledger(name)))
    except LedgerDamaged as error:
        return Collection(name, path, output, None, str(error))


def _inspections(jobs: Jobs) -> dict[str, dict[str, Any]]:
    """The latest inspection of each collection that has ended well."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs.all():
        name = job.collection
        if job.kind == "inspect" and name is not None and name not in found and jobs.state(job.id) == "done":
            found[name] = jobs.output(job.id)
    return found


def runs(workspace: Workspace, jobs: Jobs) -> list[RunSummary]:
    """Every run, the latest first; also those that a command line wrote into the folder."""
    trainings: dict[str, Job] = {}
    for job in jobs.all():
        if job.kind == "train" and job.run is not None:
            trainings.setdefault(job.run, job)
    folders = {path.name for path in (workspace.folder / "runs").iterdir() if path.is_dir() and is_name(path.name)}
    names = [*trainings, *sorted(folders - set(trainings))]
    return [_summary(workspace, jobs, name, trainings.get(name)) for name in names]


def run(workspace: Workspace, jobs: Jobs, name: str) -> RunSummary:
    """The run of this name."""
    training = next((job for job in jobs.all() if job.kind == "train" and job.run == name), None)
    if training is None and not workspace.named("runs", name).is_dir():
        raise NotThere("there is no such run")
    return _summary(workspace, jobs, name, training)


def _summary(workspace: Workspace, jobs: Jobs, name: str, job: Job | None) -> RunSummary:
    path = workspace.named("runs", name)
    state = jobs.state(job.id) if job is not None else "done"
    card = None
    if state not in ACTIVE and (path / "release" / "card.json").is_file():
        try:
            card = RunFolder(path).card()
        except (ValueError, KeyError, TypeError):
            state = "damaged"
    facts = _facts(path)
    collection = job.collection if job is not None else workspace.chosen(Path(facts.get("data", "")))
    return RunSummary(name, path, job, state, card, facts, collection)


def _facts(run: Path) -> dict[str, Any]:
    """What the command wrote down when the run was begun; empty where it cannot be read."""
    try:
        found = read_json(run / "internal" / "run.json")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def ledger_of(workspace: Workspace, run: RunSummary) -> Path | None:
    """The ledger that a run was charged on: the one that it was begun with, its collection's, or its own."""
    places = [Path(run.facts.get("ledger", "")), run.path / "ledger.jsonl"]
    if run.collection is not None:
        places.insert(1, workspace.ledger(run.collection))
    for place in places:
        try:
            found = workspace.inside(str(place))
        except (NotThere, Refused):
            continue
        if found.is_file():
            return found
    return None


def ledger_sentence(ledger: Path | None, card: Card) -> str:
    """Whether the spending of a release is on its ledger."""
    if ledger is None:
        return "The ledger of this run is not below the folders that the page may use, so that it cannot be checked."
    try:
        holds = Ledger.read(ledger).holds(card.ledger_head.length, card.ledger_head.hash)
    except LedgerDamaged as error:
        return f"The ledger of this run cannot be read: {error}."
    return f"The spending of this release is {'' if holds else 'NOT '}on the collection's ledger."


def job_view(jobs: Jobs, job: Job) -> dict[str, Any]:
    """What the page of a job shows and its event stream sends: the state, public progress and the end of the log."""
    folder, state = jobs.folder(job.id), jobs.state(job.id)
    status = read_json(folder / "status.json") or {}
    progress = read_json(folder / "progress.json") or {"parts": [], "epsilon": None}
    return {
        "state": state,
        "ended": state in FINAL,
        "stopping": (folder / "stop").exists(),
        "number": status.get("number", 0) + 1,
        "of": len(job.commands),
        "parts": progress["parts"],
        "epsilon": progress["epsilon"],
        "log": jobs.log(job.id),
    }


def review_commands(workspace: Workspace, run: RunSummary) -> list[list[str]] | None:
    """Samples, evaluation and pages; ``None`` where the run's collection is not below the roots, or not any more."""
    reading = dict(run.facts.get("reading", {}))
    try:
        path = workspace.inside(run.facts["data"])
        if reading.get("persons") is not None:
            workspace.inside(reading["persons"])
    except (KeyError, NotThere, Refused):
        return None
    return commands.review(path, run.path, run.path / "internal" / "samples", reading_from_json(reading))


_USUAL_SIZE = 28
_OFFERED = 3


@dataclass(frozen=True)
class MethodRow:
    """One method as the page shows it."""

    method: str
    expected_use: str
    why: str
    time: str
    memory: str


def plan_facts(choices: Choices, inspection: Mapping[str, Any], *, back: str | None = None) -> PublicFacts:
    """The facts of a plan. Where a number is not declared, the collection's own is taken: the plan stays inside."""
    if not inspection["images"]:
        raise Refused("no image can be read as it was chosen; the collection's page has the reasons", back=back)
    if choices.unit == "person" and (problem := inspection.get("person_problem")):
        raise Refused(f"{problem}; name persons in another way", back=back)
    sizes = [max(one["height"], one["width"]) for one in inspection["sizes"][:1]]
    colour = choices.reading.colour
    return PublicFacts(
        declared_size=choices.declared_size or inspection["persons" if choices.unit == "person" else "images"],
        size=choices.reading.size or (sizes[0] if sizes else _USUAL_SIZE),
        classes=class_count(choices, inspection),
        epsilon=choices.epsilon,
        delta=choices.delta,
        channels=3 if colour == "rgb" or (not colour and "colour" in inspection["colours"]) else 1,
        unit=choices.unit,  # type: ignore[arg-type]
    )


def class_count(choices: Choices, inspection: Mapping[str, Any]) -> int:
    """The number of classes that were declared, or that were found."""
    if choices.reading.no_labels:
        return 1
    if choices.reading.classes is None:
        return max(1, len(inspection["declared_classes"] or inspection["labels"]))
    return int(choices.reading.classes) if choices.reading.classes.isdigit() else choices.reading.classes.count(",") + 1


def plans(facts: PublicFacts) -> list[dict[str, Any]]:
    """A plan for each method, the most useful first, as JSON has it; a cost that was never measured is null."""
    return [{key: _number(value) for key, value in row.to_json().items()} for row in plan_all(facts)]


def method_rows(found: list[dict[str, Any]], device: str) -> tuple[list[MethodRow], list[MethodRow]]:
    """The plans to choose from, and the others: those that are hopeless, take too long here, or were never measured.

    The first is what ``sfumato train`` takes without ``--method``; it is there also where all are hopeless.
    """
    known = [_plan(one) for one in found]
    best = best_of(known, device=device)
    useful = [one for one in known if one.expected_use in ("rough", "good") and one.seconds(device) <= TIME_LIMIT]
    first = [best, *(one for one in useful if one is not best)][:_OFFERED]
    rest = [one for one in known if not any(one is shown for shown in first)]
    return [_row(one, device) for one in first], [_row(one, device) for one in rest]


def _plan(facts: Mapping[str, Any]) -> MethodPlan:
    """The plan that JSON was made of; a cost that was never measured is null there."""
    unknown = {key: math.nan for key in ("cpu_seconds", "gpu_seconds") if facts[key] is None}
    return MethodPlan(**{**facts, **unknown})


def _row(plan: MethodPlan, device: str) -> MethodRow:
    use, time = plan.expected_use or "unknown", duration(plan.seconds(device))
    return MethodRow(plan.method, use, plan.why, time, f"{plan.memory / 2**30:.1f} GiB")


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def check_choices(collection: Collection, choices: Choices) -> None:
    """Refuse another unit or δ than the collection's ledger counts with."""
    if collection.problem is not None:
        raise Refused(collection.problem)
    bound = collection.bound
    if bound is not None and bound.limit is None:
        raise Refused("the ledger of this collection was made without a guarantee; the page trains with one only")
    if bound is not None and (bound.unit, bound.delta) != (choices.unit, choices.delta):
        raise Refused(
            f"the ledger of this collection counts per {bound.unit} at δ {bound.delta:g}, and what was chosen is per "
            f"{choices.unit} at δ {choices.delta:g}; one ledger has one unit and one δ, so choose those of the ledger"
        )


def check_training(collection: Collection, run: Path, ledger: Path, choices: Choices, form: Form) -> None:
    """Refuse a method that cannot be planned with these settings, and a plan that the ledger cannot pay."""
    method, *settings = (word.partition("=")[2] for word in method_options(form))
    values = {key: value for key, _, value in (setting.partition("=") for setting in settings)}
    budget = Budget(epsilon=choices.epsilon, delta=choices.delta, unit=choices.unit)  # type: ignore[arg-type]
    try:
        plan = find(method).configured({"variant": "certified", **values}).plan(budget)
        if collection.bound is not None:
            Run(run, ledger=ledger).check(resume=False, plan=plan)
    except (ValueError, LookupError, BudgetExceeded) as error:
        raise Refused(str(error)) from None


def new_limit(collection: Collection, choices: Choices, form: Form) -> float | None:
    """The limit of a new ledger; ``None`` where the collection's ledger has its own."""
    if collection.bound is not None:
        return None
    limit = limit_option(form)
    if limit is not None and limit < choices.epsilon:
        raise Refused(
            f"the limit of the collection is {limit:g}, less than the ε {choices.epsilon:g} of this training; "
            "choose a larger limit, or go back and choose a smaller ε"
        )
    return limit or choices.epsilon
