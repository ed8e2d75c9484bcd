"""Trainings of several processes: setting up torch's process group, and one checkpoint for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sfumato.privacy import PrivateState
from sfumato.privacy.distributed import World
from sfumato.privacy.interfaces import Checkpoint, Result, Started
from sfumato.training.checkpoint import FolderCheckpoint, restored, stored_answer

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for one that is alive and silent. One that has ended is noticed at once."""


@contextmanager
def process_group(device: str) -> Iterator[tuple[World, str]]:
    """Join the processes that ``torchrun`` started, if it did; yields the world and this process's device.

    nccl where every process of a machine has a GPU of its own, gloo elsewhere.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield World(), device
        return
    local, beside = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    backend = "gloo"
    if device == "cuda":
        backend = "nccl" if torch.cuda.device_count() >= beside else "gloo"
        device = f"cuda:{local % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield World.current(), device
    finally:
        dist.destroy_process_group()


def for_all_processes(checkpoint: FolderCheckpoint | None) -> Checkpoint | None:
    """The checkpoint of a training in one or in several processes."""
    world = World.current()
    return SharedCheckpoint(checkpoint, world) if checkpoint is not None and world.size > 1 else checkpoint


class SharedCheckpoint:
    """One checkpoint for all processes: the first one reads and writes the files.

    It holds nothing about the processes, so that a run goes on with any number of them.
    """

    def __init__(self, checkpoint: FolderCheckpoint, world: World) -> None:
        self._checkpoint, self._world = checkpoint, world

    @property
    def started(self) -> Started | None:
        """The run that was started here; asked by the first process."""
        return self._checkpoint.started

    def start(self, started: Started) -> None:
        """Remember the run; called by the first process."""
        self._checkpoint.start(started)

    @property
    def head(self) -> tuple[int, str] | None:
        """The ledger's head after the last charge; asked by the first process."""
        return self._checkpoint.head

    def charged(self, length: int, digest: str) -> None:
        if self._world.first:
            self._checkpoint.charged(length, digest)

    def result(self, run: str) -> Result | None:
        """What the run had learnt; asked by the first process."""
        return self._checkpoint.result(run)

    def save_result(self, run: str, result: Result) -> None:
        if self._world.first:
            self._checkpoint.save_result(run, result)

    def restore(self, name: str, keep: Mapping[str, Any], states: Iterable[PrivateState]) -> int:
        content = self._world.broadcast(self._checkpoint.steps_file(name) if self._world.first else b"")
        return restored(content, keep, states) if content else 0

    def save(
        self, name: str, done: int, keep: Mapping[str, Any], states: Iterable[PrivateState], *, last: bool
    ) -> None:
        if not keep:
            return
        states = list(states)
        # The clock of the first process decides; the others must know where their private state is asked for.
        due = last or (self._world.from_first(lambda: self._checkpoint.due) if states else self._checkpoint.due)
        if not due:
            return
        for state in states:
            state._gather(self._world)
        if self._world.first:
            self._checkpoint.write(name, done, keep, states)

    def answer(self, name: str) -> Tensor | None:
        content = self._world.broadcast(self._checkpoint.answer_file(name) if self._world.first else b"")
        return stored_answer(content) if content else None

    def save_answer(self, name: str, answer: Tensor) -> None:
        if self._world.first:
            self._checkpoint.save_answer(name, answer)
