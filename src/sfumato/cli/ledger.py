"""``sfumato ledger``: show, verify or create a collection's ledger."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import print_json, print_table, say
from sfumato.cli.options import BudgetOptions, Json
from sfumato.cli.plan import QUERY_HEADINGS, query_rows

if TYPE_CHECKING:
    from sfumato.privacy import Ledger


def ledger(
    path: Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger's file.")],
    *,
    create: Annotated[bool, typer.Option("--create", help="Start a ledger for several runs.")] = False,
    budget: BudgetOptions,
    release: Annotated[Path | None, typer.Option(help="Check that this release's spending is on the ledger.")] = None,
    as_json: Json = False,
) -> None:
    """Show, verify or create a collection's ledger. Exit status 1 if the release's spending is not on it."""
    from sfumato.privacy import Ledger

    if create:
        if path.exists():
            raise FileExistsError(f"{path} exists; a ledger is never started over")
        Ledger(path, budget.budget()).close()
    elif budget != BudgetOptions():
        raise ValueError("--epsilon, --delta and --unit belong to --create; an existing ledger has its own")
    facts = _facts(Ledger.read(path), release)
    if as_json:
        print_json(facts)
    else:
        _say(facts, release)
    if facts.get("holds_release") is False:
        raise typer.Exit(1)


def _facts(found: Ledger, release: Path | None) -> dict[str, Any]:
    from sfumato.privacy import Budget
    from sfumato.release.card import rounded_up

    spent, limit = found.spent(), found.limit
    facts: dict[str, Any] = {
        "limit": limit.to_json(),
        "spent": None if spent == math.inf else rounded_up(spent),
        "remaining": max(0.0, limit.epsilon - spent) if isinstance(limit, Budget) else None,
        "runs": found.runs(),
        "events": [event.to_json() for event in found.events()],
        "entries": found.head[0],
        "head": found.head[1],
        "verified": True,
    }
    if release is not None:
        from sfumato.training.run_folder import release_folder

        head = json.loads((release_folder(release) / "card.json").read_text())["ledger_head"]
        facts["holds_release"] = found.holds(head["length"], head["hash"])
    return facts


def _say(facts: dict[str, Any], release: Path | None) -> None:
    limit = facts["limit"]
    spent = "∞" if facts["spent"] is None else f"{facts['spent']:g}"
    allowed = "no limit" if limit["epsilon"] is None else f"{limit['epsilon']:g} at δ {limit['delta']:g}"
    say(f"spent ε {spent} of {allowed}, per {limit['unit']}; the hash chain is intact")
    print_table(QUERY_HEADINGS, query_rows(facts["events"]))
    for run in facts["runs"]:
        say(f"run {run['run']}: {run['method']} {run['variant']}, {run['time']}")
    if facts.get("holds_release") is True:
        say(f"The spending of {release} is on this ledger.")
    elif facts.get("holds_release") is False:
        say(f"The spending of {release} is NOT on this ledger.")
