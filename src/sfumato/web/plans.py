"""The plan of every method for what was chosen, and whether a training fits the ledger of its collection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.durations import duration
from sfumato.methods import find
from sfumato.planning.expected_use import PublicFacts
from sfumato.planning.plan import TIME_LIMIT, MethodPlan, best_of, plan_all
from sfumato.privacy import Budget, BudgetExceeded
from sfumato.training.run import Run
from sfumato.web.choices import Choices, Form, limit_option, method_options
from sfumato.web.contents import Collection
from sfumato.web.workspace import Refused

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
