"""A run: its key, its entry on the ledger and its Curator, from the first query to the closing of the data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sfumato.privacy.curator import Curator
from sfumato.privacy.distributed import World
from sfumato.privacy.events import RawAccess, SubsampledGaussian, event_from_json
from sfumato.privacy.interfaces import Checkpoint, Progress, Started, Tape
from sfumato.privacy.ledger import Ledger, RunRefused
from sfumato.privacy.plan import Plan
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords
from sfumato.privacy.step import Step


@dataclass(frozen=True)
class Session:
    """One run, while it holds the data."""

    run: str
    plan: Plan
    ledger: Ledger
    curator: Curator
    public_seed: int
    """For torch's global generator, which draws initial weights, latents and fakes."""

    def reasons(self) -> list[str]:
        """Why the run cannot be certified; empty if it can. Read from the ledger, not from this process."""
        found = [event.reason for event in self.ledger.events(self.run) if isinstance(event, RawAccess)]
        if self.ledger.seeded(self.run):
            found.append("a fixed seed was used, for tests: whoever knows it can remove the noise")
        own = ((type(self.curator), Curator), (self.curator.step_type, Step), (type(self.ledger), Ledger))
        names = {kind.__name__ for kind, ours in own if kind is not ours} | self.curator._unverified
        if names:
            found.append(f"answers came from code outside the trusted base: {', '.join(sorted(names))}")
        return found

    def end(self) -> None:
        """Close the data, check that every answer in use was charged, and write the end of the run."""
        self.curator.close()
        self.ledger.end_run(self.run)


@contextmanager
def session(
    records: PrivateRecords,
    plan: Plan,
    ledger: Ledger | str | Path | None,
    *,
    method: str,
    parameters: Mapping[str, Any],
    curator_type: type[Curator] = Curator,
    device: str | torch.device | None = None,
    max_images_per_unit: int = 16,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
    seed: int | None = None,
    tape: Tape | None = None,
    internal: bool = False,
) -> Iterator[Session]:
    """Start a run, or go on with the one that the checkpoint names. A ledger that is opened here is closed here.

    Where several processes train together, the first one alone opens the ledger and starts the run; the others count
    with a copy of the ledger in memory.
    """
    world = World.current()
    randomness = Randomness(seed, share=world.broadcast)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    facts = {"parameters": dict(parameters), "plan": plan.to_json(), "device": device.type}
    begin = _Beginning(ledger, plan, method, facts, randomness, checkpoint)
    try:
        begun = world.from_first(begin)
        started = Started(**begun["started"])
        own = begin.ledger if world.first else Ledger.copied(begun["entries"])
        if begun["resumed"]:
            plan = _resumed(own, started, method, plan, facts)
        curator = curator_type(
            records,
            plan,
            own,
            run=started.run,
            randomness=randomness,
            device=device,
            max_images_per_unit=max_images_per_unit,
            checkpoint=checkpoint,
            progress=progress,
            tape=tape,
            internal=internal,
            world=world,
        )
        yield Session(started.run, plan, own, curator, started.public_seed)
    finally:
        begin.close()


class _Beginning:
    """Opens the ledger and starts the run, or finds the one that goes on; called in the first process alone."""

    def __init__(
        self,
        ledger: Ledger | str | Path | None,
        plan: Plan,
        method: str,
        facts: Mapping[str, Any],
        randomness: Randomness,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._given, self._plan, self._method, self._facts = ledger, plan, method, facts
        self._randomness, self._checkpoint = randomness, checkpoint
        self._opened: Ledger | None = None

    def __call__(self) -> dict[str, Any]:
        """The run and the ledger's entries, as JSON has them."""
        started = self._checkpoint.started if self._checkpoint else None
        given, resumed = self._given, started is not None
        if resumed and not isinstance(given, Ledger) and (given is None or not Path(given).exists()):
            raise RunRefused(
                "the checkpoint belongs to a run whose ledger is not here; without it nobody knows what was spent. "
                "Give the ledger file of the run, or start a new run in another folder"
            )
        self._opened = given if isinstance(given, Ledger) else Ledger(given, limit=self._plan.budget)
        _check_limit(self.ledger, self._plan)
        if started is None:
            started = self._start()
        else:
            _resumed(self.ledger, started, self._method, self._plan, self._facts)
            if self._randomness.seeded and not self.ledger.seeded(started.run):
                self.ledger.note_seed(started.run)
        return {"started": asdict(started), "resumed": resumed, "entries": self.ledger.entries()}

    @property
    def ledger(self) -> Ledger:
        if self._opened is None:
            raise RuntimeError("the ledger is not open")
        return self._opened

    def _start(self) -> Started:
        variant = str(self._facts["parameters"].get("variant", ""))
        seeded = self._randomness.seeded
        run = self.ledger.start_run(method=self._method, variant=variant, seeded=seeded, facts=self._facts)
        started = Started(run, self._randomness.public_seed(), self.ledger.id, *self.ledger.head)
        if self._checkpoint:
            self._checkpoint.start(started)
        return started

    def close(self) -> None:
        if self._opened is not None and self._opened is not self._given:
            self._opened.close()


def _resumed(ledger: Ledger, started: Started, method: str, plan: Plan, facts: Mapping[str, Any]) -> Plan:
    """The plan of the run that goes on, as the ledger has it, or a refusal."""
    if started.ledger != ledger.id or not ledger.holds(started.length, started.hash):
        raise RunRefused(
            "the checkpoint was written with another ledger, or this one has lost entries. Resume the run with the "
            "ledger it was started with, or start a new run in another folder"
        )
    entry = ledger.run_entry(started.run)
    if ledger.ended(started.run):
        raise RunRefused("the run of this checkpoint has ended and made its release; start a new run in another folder")
    given = json.loads(json.dumps(facts))
    before, now = entry["plan"]["budget"], given["plan"]["budget"]
    if (entry["method"], entry["parameters"], before) != (method, given["parameters"], now):
        raise RunRefused("the run was started with another method, parameters or budget; resume it with the same")
    events = tuple(event_from_json(event) for event in entry["plan"]["events"])
    return Plan(plan.budget, tuple(event for event in events if isinstance(event, SubsampledGaussian)))


def _check_limit(ledger: Ledger, plan: Plan) -> None:
    limit, budget = ledger.limit, plan.budget
    if limit.delta != budget.delta or limit.unit != budget.unit:
        raise ValueError(
            f"the ledger counts per {limit.unit} at δ {limit.delta:g}, the budget per {budget.unit} "
            f"at δ {budget.delta:g}; one ledger has one unit and one δ"
        )
