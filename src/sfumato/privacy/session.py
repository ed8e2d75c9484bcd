"""A run: its key, its entry on the ledger and its Curator, from the first query to the closing of the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato.privacy.curator import Curator
from sfumato.privacy.interfaces import Checkpoint, Progress, Tape
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.plan import Plan
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords


@dataclass(frozen=True)
class Session:
    """One run, while it holds the data."""

    run: str
    plan: Plan
    ledger: Ledger
    curator: Curator
    randomness: Randomness
    public_seed: int
    """For torch's global generator, which draws initial weights, latents and fakes."""


@contextmanager
def session(
    records: PrivateRecords,
    plan: Plan,
    ledger: Ledger | str | Path | None,
    *,
    method: str,
    variant: str,
    curator_type: type[Curator] = Curator,
    device: str | torch.device | None = None,
    max_images_per_unit: int = 16,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
    seed: int | None = None,
    tape: Tape | None = None,
) -> Iterator[Session]:
    """Start a run, or go on with the one that the checkpoint names. A ledger that is opened here is closed here."""
    randomness = Randomness(seed)
    opened = ledger if isinstance(ledger, Ledger) else Ledger(ledger, limit=plan.budget)
    try:
        _check_limit(opened, plan)
        run, public_seed = None, randomness.public_seed()
        if checkpoint and checkpoint.started:
            run, public_seed = checkpoint.started
        if run is None:
            run = opened.start_run(method=method, variant=variant, seeded=randomness.seeded)
            if checkpoint:
                checkpoint.start(run, public_seed)
        curator = curator_type(
            records,
            plan,
            opened,
            run=run,
            randomness=randomness,
            device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
            max_images_per_unit=max_images_per_unit,
            checkpoint=checkpoint,
            progress=progress,
            tape=tape,
        )
        yield Session(run, plan, opened, curator, randomness, public_seed)
    finally:
        if opened is not ledger:
            opened.close()


def _check_limit(ledger: Ledger, plan: Plan) -> None:
    limit, budget = ledger.limit, plan.budget
    if limit.delta != budget.delta or limit.unit != budget.unit:
        raise ValueError(
            f"the ledger counts per {limit.unit} at δ {limit.delta:g}, the budget per {budget.unit} "
            f"at δ {budget.delta:g}; one ledger has one unit and one δ"
        )
