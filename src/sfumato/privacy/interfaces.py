"""What a run may be given from outside: a progress display, a checkpoint and, for tests, a tape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from sfumato.privacy.mechanism import Query
from sfumato.privacy.state import PrivateState


class Progress(Protocol):
    """Receives public numbers only: the name of a part, how many of how many steps are done, and the ε so far."""

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None: ...


@dataclass(frozen=True)
class Started:
    """What a checkpoint remembers of its run: the run, the ledger that holds it, and the ledger's head at that time."""

    run: str
    public_seed: int
    ledger: str
    length: int
    hash: str


class Checkpoint(Protocol):
    """Keeps what a run needs to go on after a crash: released answers, public objects and private state."""

    @property
    def started(self) -> Started | None: ...
    def start(self, started: Started) -> None: ...
    def restore(self, name: str, keep: Mapping[str, Any], states: Iterable[PrivateState]) -> int: ...
    def save(self, name: str, done: int, keep: Mapping[str, Any], states: Iterable[PrivateState]) -> None: ...
    def answer(self, name: str) -> Tensor | None: ...
    def save_answer(self, name: str, answer: Tensor) -> None: ...


class Tape(Protocol):
    """Used by neighbour replay: sees each query with its exact sums and its answer, and may return another answer.

    A tape is accepted in seeded runs only, and a seeded run has no guarantee.
    """

    def exchange(self, query: Query, answer: Tensor, /, *, charges: int) -> Tensor: ...
