"""What a run may be given from outside: a progress display, a checkpoint and, for tests, a tape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from sfumato.privacy.budget import Unit
from sfumato.privacy.events import Charged
from sfumato.privacy.mechanism import Query
from sfumato.privacy.records import PrivateState


class Progress(Protocol):
    """Receives public numbers only: the name of a part, how many of how many steps are done, and the ε so far."""

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None: ...


@dataclass(frozen=True)
class PublicInput:
    """A collection that a run treats as public.

    Attributes:
        name: Its name.
        sha256: The hash of its content, which stays here: the ledger keeps a keyed one.
        release: The run whose release it was drawn from, if it is synthetic.
        events: What that release has spent, or could have spent by its plan.
        unit: The unit of that release's guarantee.
        proof: What shows that the release's card is true; "" where it is the custodian's statement.
        place: Where it was read from, to be compared with where the private collection was.
        fingerprint: What the ledger of another trial of the same selection has for ``sha256``.
    """

    name: str
    sha256: str
    release: str | None = None
    events: tuple[Charged, ...] = ()
    unit: Unit | None = None
    proof: str = ""
    place: Path | None = None
    fingerprint: str | None = None


@dataclass(frozen=True)
class Started:
    """What a checkpoint remembers of its run: the run, the ledger that holds it, and the ledger's head at that time.

    It is written twice: with the head before the run's entry, and with the head after it. So a crash in between
    leaves a run that goes on under the same id, and a ledger that was cut back to before the run is noticed.
    """

    run: str
    public_seed: int
    ledger: str
    length: int
    hash: str
    collection: str
    """A fingerprint of the private collection, with a key that is kept nowhere else: ``PrivateRecords.fingerprint``."""


@dataclass(frozen=True)
class Result:
    """What a run has learnt, kept before the run ends, so that a crash after that cannot lose its release."""

    tensors: Mapping[str, Tensor]
    counts: tuple[float, ...] | None
    answers: Mapping[str, int]
    """How many answers of each event are in it; all of them must be on the ledger that its card is made from."""


@dataclass(frozen=True)
class KeptKey:
    """What computes a run's answers again, from a beginning (or resumption) on. It is as secret as the collection."""

    key: str
    """Of all noise, coins and draws, in hexadecimal digits."""
    collection: str
    """A fingerprint of the private collection, as in ``Started``."""
    length: int
    """Of the ledger at that time."""


class Checkpoint(Protocol):
    """Keeps what a run needs to go on after a crash: released answers, public objects and private state.

    ``charged`` is called after every charge and before its noise is drawn, so that an older copy of the ledger is
    known by the charges that it lacks. ``save`` may skip a step, but not the ``last`` one of a training loop.
    """

    @property
    def started(self) -> Started | None: ...
    def start(self, started: Started) -> None: ...
    @property
    def head(self) -> tuple[int, str] | None: ...
    def charged(self, length: int, digest: str) -> None: ...
    def result(self, run: str) -> Result | None: ...
    def save_result(self, run: str, result: Result) -> None: ...
    def card(self, run: str) -> str | None: ...
    def save_card(self, run: str, card: str) -> None: ...
    def restore(self, name: str, keep: Mapping[str, Any], states: Iterable[PrivateState]) -> int: ...
    def save(
        self, name: str, done: int, keep: Mapping[str, Any], states: Iterable[PrivateState], *, last: bool
    ) -> None: ...
    def answer(self, name: str) -> Tensor | None: ...
    def save_answer(self, name: str, answer: Tensor) -> None: ...


class Tape(Protocol):
    """Used by neighbour replay: sees each query with its exact sums and its answer, and may return another answer.

    A tape is accepted in seeded runs only, and a seeded run has no guarantee.
    """

    def exchange(self, query: Query, answer: Tensor, /, *, charges: int) -> Tensor: ...
