"""Whether a training fits the ledger of its collection: asked when it is started, before any image is read."""

from __future__ import annotations

from pathlib import Path

from sfumato.methods import find
from sfumato.privacy import Budget, BudgetExceeded
from sfumato.training.run_folder import Run
from sfumato.web.choices import Choices, Form, limit_option, method_options
from sfumato.web.contents import Collection
from sfumato.web.workspace import Refused


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
