"""A run: its key, its entry on the ledger and its Curator, from the first query to the closing of the data."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from sfumato.privacy.accounting import Plan
from sfumato.privacy.curator import Curator, check_charged
from sfumato.privacy.distributed import World
from sfumato.privacy.events import RawAccess, SubsampledGaussian, event_from_json
from sfumato.privacy.interfaces import Checkpoint, KeptKey, Progress, Result, Started, Tape
from sfumato.privacy.ledger import Ledger, RunRefused, new_run_id
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.records import PrivateRecords
from sfumato.privacy.step import Step

_COMPARED_IMAGES = 1 << 14
_OTHER_RECORDS = (
    "the processes have read different collections: the number of images, labels, persons and some of the images are "
    "compared. This command has charged nothing. Give all machines the same files and the same software"
)
_OTHER_SETTINGS = (
    "the processes were started with another method, parameters, budget or version of torch. This command has "
    "charged nothing. Give all machines the same command and the same software"
)


@dataclass(frozen=True)
class Session:
    """One run, while it holds the data."""

    run: str
    plan: Plan
    ledger: Ledger
    curator: Curator
    public_seed: int
    """For torch's global generator, which draws initial weights, latents and fakes."""
    checkpoint: Checkpoint | None = None
    result: Result | None = None
    """What the run had learnt before a crash kept it from making its release."""
    card: str | None = None
    """The card whose hash is on the ledger, where a crash came between that and the release."""

    def reasons(self) -> list[str]:
        """Why the run cannot be certified; empty if it can. Read from the ledger, not from this process."""
        found = [event.reason for event in self.ledger.events(self.run) if isinstance(event, RawAccess)]
        if self.ledger.seeded(self.run):
            found.append("a fixed seed was used, for tests: whoever knows it can remove the noise")
        if names := self.ledger.own_code(self.run) | _own_code(type(self.curator), self.ledger):
            found.append(f"answers came from code outside the trusted base: {', '.join(sorted(names))}")
        return found

    def learnt(self, tensors: Mapping[str, Tensor], counts: Sequence[float] | None) -> None:
        """Close the data, check that every answer in use was charged, and keep the result."""
        self.curator.close()
        if self.checkpoint:
            noisy = None if counts is None else tuple(counts)
            self.checkpoint.save_result(self.run, Result(tensors, noisy, dict(self.curator._answers)))

    def end(self, card: str, files: Mapping[str, str]) -> None:
        """Write the end of the run, with the hashes of what it releases; the card is kept until it is released."""
        if self.checkpoint:
            self.checkpoint.save_card(self.run, card)
        self.ledger.end_run(self.run, files=files, answered=self.curator.unwritten_answers())


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
    keep: Callable[[KeptKey], None] | None = None,
    key: bytes | None = None,
) -> Iterator[Session]:
    """Start a run, or go on with the one that the checkpoint names. A ledger that is opened here is closed here.

    ``keep`` gets the run's key before anything is drawn; ``key`` is one that was kept, and the run has no guarantee.

    Where several processes train together, the first one alone opens the ledger and starts the run; the others count
    with a copy of the ledger in memory. What they were given must be the same: a record that lies at another place in
    the collection of another process could be in the sum twice, and noise for another budget would not be enough.
    """
    world = World.current()
    if world.size > 1:
        world.check_same(records._digest(_COMPARED_IMAGES).encode(), _OTHER_RECORDS)
        given = (method, dict(parameters), plan.budget.to_json(), max_images_per_unit, seed, torch.__version__)
        world.check_same(repr(given).encode(), _OTHER_SETTINGS)
    randomness = Randomness(seed, key=key, share=world.broadcast)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    facts: dict[str, Any] = {"parameters": dict(parameters), "plan": plan.to_json(), "device": device.type}
    if keep:
        facts["key_kept"] = True
    begin = _Beginning(ledger, plan, method, facts, randomness, checkpoint, curator_type, records, keep)
    try:
        begun = world.from_first(begin)
        started = Started(**begun["started"])
        own = begin.ledger if world.first else Ledger.copied(begun["entries"])
        if begun["resumed"] or not world.first:
            # Calibrated once: the last bits of the noise could differ between two kinds of processors.
            plan = _planned(own, started, method, plan, facts)
        result = begin.result
        if begun["finished"] is not None and world.size > 1:
            tensors = load(world.broadcast(save(_contiguous(result.tensors)) if result else b""))
            counts, answers = begun["finished"]["counts"], begun["finished"]["answers"]
            result = Result(tensors, None if counts is None else tuple(counts), answers)
        curator = curator_type(
            records,
            # Nothing is left to ask where the result is there.
            plan if result is None else Plan(plan.budget, ()),
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
        yield Session(started.run, plan, own, curator, started.public_seed, checkpoint, result, begun["card"])
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
        curator_type: type[Curator],
        records: PrivateRecords,
        keep: Callable[[KeptKey], None] | None,
    ) -> None:
        self._keep = keep
        self._given, self._plan, self._method, self._facts = ledger, plan, method, facts
        self._records = records
        self._randomness, self._checkpoint, self._curator_type = randomness, checkpoint, curator_type
        self._opened: Ledger | None = None
        self.result: Result | None = None

    def __call__(self) -> dict[str, Any]:
        """The run, the ledger's entries and what is public of a kept result, as JSON has them."""
        checkpoint, seeded = self._checkpoint, self._randomness.seeded
        started = checkpoint.started if checkpoint else None
        ledger = self._open(resumed=started is not None)
        if started is None:
            collection = _fingerprint(self._records) if checkpoint or self._keep else ""
            started = Started(new_run_id(), self._randomness.public_seed(), ledger.id, *ledger.head, collection)
            if checkpoint:
                checkpoint.start(started)
        else:
            _check_collection(self._records, started)
        _check_ledger(ledger, started, checkpoint)
        resumed = ledger.knows(started.run)
        if not resumed:
            variant = str(self._facts["parameters"].get("variant", ""))
            ledger.start_run(method=self._method, variant=variant, seeded=seeded, facts=self._facts, run=started.run)
            if checkpoint:
                checkpoint.start(replace(started, length=ledger.head[0], hash=ledger.head[1]))
        else:
            _planned(ledger, started, self._method, self._plan, self._facts)
        self.result = _kept_result(ledger, started, checkpoint)
        if self.result is None:
            if self._keep:
                self._keep(KeptKey(self._randomness._key.hex(), started.collection, ledger.head[0]))
            if seeded and not ledger.seeded(started.run):
                ledger.note_seed(started.run)
            for name in sorted(_own_code(self._curator_type, ledger)):
                ledger.note_own_code(started.run, name)
        kept = self.result and {"counts": self.result.counts, "answers": dict(self.result.answers)}
        # A card that is not on the ledger yet is made again.
        card = checkpoint.card(started.run) if checkpoint and ledger.ended(started.run) else None
        found = {"started": asdict(started), "resumed": resumed, "entries": ledger.entries(), "finished": kept}
        return {**found, "card": card}

    def _open(self, *, resumed: bool) -> Ledger:
        given = self._given
        if resumed and not isinstance(given, Ledger) and (given is None or not Path(given).exists()):
            raise RunRefused(
                "the checkpoint belongs to a run whose ledger is not here; without it nobody knows what was spent. "
                "Give the ledger file of the run, or start a new run in another folder"
            )
        self._opened = given if isinstance(given, Ledger) else Ledger(given, limit=self._plan.budget)
        check_limit(self._opened, self._plan)
        return self._opened

    @property
    def ledger(self) -> Ledger:
        if self._opened is None:
            raise RuntimeError("the ledger is not open")
        return self._opened

    def close(self) -> None:
        if self._opened is not None and self._opened is not self._given:
            self._opened.close()


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def _own_code(curator_type: type[Curator], ledger: Ledger) -> set[str]:
    """Names of the classes that are not the project's own."""
    kinds = ((curator_type, Curator), (curator_type.step_type, Step), (type(ledger), Ledger))
    return {kind.__name__ for kind, ours in kinds if kind is not ours}


def _fingerprint(records: PrivateRecords, key: bytes | None = None) -> str:
    """A new key, and the fingerprint of the collection with it."""
    key = secrets.token_bytes(32) if key is None else key
    return f"{key.hex()} {records.fingerprint(key)}"


def _check_collection(records: PrivateRecords, started: Started) -> None:
    """Refuse other images than the run was started with: one record's steps would depend on two of them."""
    key = bytes.fromhex(started.collection.partition(" ")[0])
    if _fingerprint(records, key) != started.collection:
        raise RunRefused(
            "the collection has changed since the run was started: other images, labels, persons, or another order. "
            "Resume the run with the collection as it was, or start a new run"
        )


def _check_ledger(ledger: Ledger, started: Started, checkpoint: Checkpoint | None) -> None:
    """Refuse a ledger that is not the run's, or that lacks a charge whose noise may have been drawn."""
    if started.ledger != ledger.id or not ledger.holds(started.length, started.hash):
        raise RunRefused(
            "the checkpoint was written with another ledger, or this one has lost entries. Resume the run with the "
            "ledger it was started with, or start a new run in another folder"
        )
    head = checkpoint.head if checkpoint else None
    if head is not None and not ledger.holds(*head):
        raise RunRefused(
            "the run has charged more than is on this ledger, which is an older copy. Go on with the ledger that has "
            "all charges, or start a new run in another folder"
        )


def _kept_result(ledger: Ledger, started: Started, checkpoint: Checkpoint | None) -> Result | None:
    """What the run has learnt, if it was killed while it ended. All answers in it must be on this ledger."""
    result = checkpoint.result(started.run) if checkpoint else None
    if result is None:
        if ledger.ended(started.run):
            raise RunRefused("the run of this checkpoint has made its release; start a new run in another folder")
        return None
    for name, steps in result.answers.items():
        check_charged(ledger, started.run, name, steps)
    return result


def _planned(ledger: Ledger, started: Started, method: str, plan: Plan, facts: Mapping[str, Any]) -> Plan:
    """The plan of the run as the ledger has it; a refusal where the run was started with another."""
    entry = ledger.run_entry(started.run)
    given = json.loads(json.dumps(facts))
    before, now = entry["plan"]["budget"], given["plan"]["budget"]
    if (entry["method"], entry["parameters"], before) != (method, given["parameters"], now):
        raise RunRefused("the run was started with another method, parameters or budget; resume it with the same")
    events = tuple(event_from_json(event) for event in entry["plan"]["events"])
    return Plan(plan.budget, tuple(event for event in events if isinstance(event, SubsampledGaussian)))


def check_limit(ledger: Ledger, plan: Plan) -> None:
    """Refuse a plan for another unit or δ than the ledger counts with."""
    limit, budget = ledger.limit, plan.budget
    if limit.delta != budget.delta or limit.unit != budget.unit:
        raise ValueError(
            f"the ledger counts per {limit.unit} at δ {limit.delta:g}, the budget per {budget.unit} "
            f"at δ {budget.delta:g}; one ledger has one unit and one δ"
        )
