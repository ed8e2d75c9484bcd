"""All audits that apply to a finished release, in one file beside it and a few lines for its card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.audit.canary import accountant_check, white_box
from sfumato.audit.membership import NOTICE, attacks_on
from sfumato.audit.noise import ALPHA, audit_noise
from sfumato.audit.replay import replay
from sfumato.audit.worst_case import worst_case_images
from sfumato.evaluation.classifiers import Progress, silent
from sfumato.files import write_file, write_json
from sfumato.methods.base import Method
from sfumato.methods.registry import load, method_of
from sfumato.privacy import Budget, BudgetExceeded, Event, Ledger
from sfumato.privacy.accounting import epsilon
from sfumato.release.card import Card, rounded_up
from sfumato.release.verification import problems
from sfumato.training.run import release_folder

Images = tuple[np.ndarray, np.ndarray]
"""uint8 pixels and labels."""


def audit_release(
    path: str | Path,
    *,
    members: Images | None = None,
    others: Images | None = None,
    pairs: int = 10,
    canaries: int = 250,
    samples: int = 2000,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Audit the release in ``path``, a run's folder or a release folder.

    The card and the ledger are checked as they are, and where something does not fit, the audit ends there. The method
    is replayed, its noise tested and attacked, in its small form on a drawn worst-case collection under the same
    budget: that touches no private data. With ``members`` and ``others`` (images that were in the collection, and some
    that were not) the release itself is attacked.
    """
    path = Path(path)
    folder = release_folder(path)
    release = load(folder)
    card = release.card
    ledger = path / "ledger.jsonl"
    wrong = problems(folder, Ledger.read(ledger) if ledger.exists() else None)
    audit: dict[str, Any] = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "method": card.method,
        "variant": card.variant,
        "printed": card.epsilon,
        "delta": card.delta,
        "card": {**_check_card(card, ledger), "problems": wrong},
        "internal": {},
        "lines": [],
    }
    if wrong:
        audit["card"]["sound"] = False
        return {**audit, "flagged": True}
    if card.epsilon is not None and card.delta is not None:
        budget = Budget(card.epsilon, card.delta, unit=card.unit)
        _attack_method(audit, card, budget, pairs=pairs, canaries=canaries, progress=progress)
    else:
        audit["lines"].append("Not audited: the release has no guarantee, so there is no ε to refute.")
    if members is not None and others is not None:
        audit["internal"]["notice"] = NOTICE
        audit["internal"]["membership"] = [
            found.to_json() for found in attacks_on(release, members, others, samples=samples)
        ]
    audit["flagged"] = not audit["card"]["sound"] or any(
        part.get("flagged", False) for part in audit.values() if isinstance(part, dict)
    )
    return audit


def _check_card(card: Card, ledger: Path) -> dict[str, Any]:
    """Check that the printed ε follows from what the card accounts for and that the ledger holds the release."""
    spent = epsilon(card.accounted, card.delta or 1e-5)
    covered = card.epsilon is None or spent <= card.epsilon
    holds: bool | None = None
    if ledger.exists():
        holds = Ledger.read(ledger).holds(card.ledger_head.length, card.ledger_head.hash)
    return {
        "recomputed": rounded_up(spent) if math.isfinite(spent) else None,
        "covers": covered,
        "on_ledger": holds,
        "sound": covered and holds is not False,
    }


def _attack_method(
    audit: dict[str, Any], card: Card, budget: Budget, *, pairs: int, canaries: int, progress: Progress
) -> None:
    described = method_of(card)
    method = type(described).small(described.variant)
    budget, printed = _affordable(method, budget), budget
    private = worst_case_images(persons=budget.unit == "person")
    replayed = replay(method, private, budget=budget, pairs=pairs, progress=progress)
    tested = audit_noise(method, private, budget=budget, progress=progress)
    events = card.events
    progress("accountant", 0, 0)
    accounted = accountant_check(
        events, delta=budget.delta, draws=_draws(events, budget.delta), printed=printed.epsilon
    )
    progress("canaries", 0, 0)
    attacked = white_box(method, private, budget=budget, canaries=canaries)
    audit["replay"], audit["noise"] = replayed.to_json(), tested.to_json()
    audit["accountant"], audit["canary"] = accounted.to_json(), attacked.to_json()
    day = audit["made"][:10]
    found = "nothing moved more than was paid for" if not replayed.flagged else "FLAGGED"
    moved = max(replayed.movement.values(), default=0.0)
    noise = "nothing found" if not tested.flagged else "FLAGGED"
    audit["lines"] += [
        f"{day}: neighbour replay of the method (small, drawn data), {replayed.pairs} pairs: {found}; "
        f"largest movement ÷ paid {moved:.4f}",
        f"{day}: noise and coins at α {ALPHA:g}, {len(tested.tests)} tests: {noise}",
        f"{day}: {attacked} ({attacked.canaries} gradient canaries, one run of the method, small, drawn data)",
        f"{day}: {accounted} (this release's events)",
    ]


def _affordable(method: Method, budget: Budget) -> Budget:
    """The small form may have fixed noise that a small budget cannot pay for; then it is audited under a larger one."""
    for larger in (budget.epsilon, 3.0, 30.0, 300.0):
        try:
            enough = replace(budget, epsilon=max(larger, budget.epsilon))
            method.plan(enough)
        except BudgetExceeded:
            continue
        return enough
    return budget


def _draws(events: Sequence[Event], delta: float) -> int:
    """Enough for a quantile at δ, fewer where there are many steps to draw."""
    steps = sum(getattr(event, "steps", 1) for event in events)
    return int(min(max(20 / delta, 20_000), 4_000_000, max(20_000, 4e8 / max(1, steps))))


def write(audit: dict[str, Any], path: str | Path, *, on_card: bool = True) -> Path:
    """``audit.json`` beside the release, readable by the owner alone; the lines go onto the card, which is public.

    A card that does not fit stays as it is. The lines are computed from the card and from drawn data; results of
    membership attacks stay in the file.
    """
    path = Path(path)
    folder = release_folder(path)
    beside = path / "audit.json" if folder != path else path.parent / f"{path.name}.audit.json"
    write_json(beside, audit, private=True)
    if on_card and not audit["card"]["problems"]:
        release = load(folder).with_audits(audit["lines"])
        write_json(folder / "card.json", release.card.to_json(), private=False)
        write_file(folder / "card.html", release.page(), private=False)
    return beside
