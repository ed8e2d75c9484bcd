"""Trainings of several processes: setting up torch's process group."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from sfumato.privacy.distributed import ProcessesDiffer, RankLost, World

Result = TypeVar("Result")

_SECONDS = 1.0  # between two exchanges of processes that wait for one

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for one that is alive and silent. One that has ended is noticed at once."""

MEETING = timedelta(minutes=5)
"""How long a process waits until all of them have started."""


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
    # torch._dynamo imports this module in the first step of an optimizer, and its functions have the group of that
    # moment as their default argument. Imported after the group is made, it keeps the group and its threads alive
    # until the interpreter shuts down; a thread of gloo that then frees a tensor aborts the process, its work done
    # ("terminate called without an active exception").
    importlib.import_module("torch.distributed.nn")
    store, rank, size = _first_contact()
    meet(store, rank, size, backend)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield World.current(), device
    finally:
        dist.destroy_process_group()


def _first_contact() -> tuple[Any, int, int]:
    """The store of all processes, this one's number, and how many there are."""
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=MEETING)))
    except RuntimeError:
        store = None
    if store is None:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise RankLost(f"the first process of this run cannot be reached at {place}: it has ended or never started")
    return store, rank, size


def meet(store: Any, rank: int, size: int, backend: str, *, longest: timedelta = MEETING) -> None:
    """Wait until all processes have started, and refuse those that would exchange sums in different ways.

    A group of processes that is set up with one of them missing, or with nccl here and gloo there, waits for
    ``TIMEOUT`` and then says nothing about the reason.
    """
    names = [f"backend of {number}" for number in range(size)]
    end = time.monotonic() + longest.total_seconds()
    missing, found = [], []
    try:
        store.set(names[rank], backend)
        # Asked again and again, because a process that waits inside of the store cannot be interrupted.
        while not store.check(names) and time.monotonic() < end:
            time.sleep(0.05)
        missing = [] if store.check(names) else [n for n, name in enumerate(names) if not store.check([name])]
        found = [] if missing else [content.decode() for content in store.multi_get(names)]
    except RuntimeError:
        missing = []
    if missing:
        numbers = ", ".join(map(str, missing))
        raise RankLost(f"processes {numbers} of 0 to {size - 1} have not started: see what their machines say")
    if not found:
        raise RankLost("another process of this run has ended before all of them had met; nothing was charged")
    if len(set(found)) > 1:
        without = ", ".join(str(number) for number, one in enumerate(found) if one == "gloo")
        raise ProcessesDiffer(
            f"every process has a GPU of its own but processes {without} of 0 to {size - 1}. Start at most as many "
            "processes on a machine as it has GPUs, or give --device cpu"
        )


def in_turn(world: World, make: Callable[[], Result]) -> Result:
    """What ``make`` returns, after the first process of this machine has called it: it may fill a cache."""
    if world.size == 1:
        return make()
    first, others = futures.Future[Result](), futures.Future[Result]()
    _together(world, make, first, here=world.leads)
    _together(world, make, others, here=not world.leads)
    return first.result() if world.leads else others.result()


def _together(world: World, make: Callable[[], Result], made: futures.Future[Result], *, here: bool) -> None:
    """Call ``make`` in the processes where ``here`` says so, and return when all of them are done.

    That may take hours, more than an exchange waits for a process. So there are exchanges all the time, by which a
    process that has ended is noticed as ever.
    """
    if here:
        # A daemon: it must not keep a process alive that has lost the others.
        Thread(target=_fulfil, args=(made, make), daemon=True).start()
    busy = True
    while busy:
        if here:
            futures.wait([made], _SECONDS)
        done = made.done() or not here
        if made.done():
            made.result()  # raises what ``make`` raised
        busy = bool(world.all_reduce(torch.tensor([int(not done)])).item())


def _fulfil(made: futures.Future[Result], make: Callable[[], Result]) -> None:
    try:
        made.set_result(make())
    except BaseException as error:
        made.set_exception(error)
