"""Run the tasks of an experiment, several at a time, each in a process of its own; finished tasks are not run again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from sfumato.files import private_folder, write_json

FACTS = "conditions.json"
# Everything a training or an evaluation imports: the processes of the pool are copies of one that has it loaded.
_PRELOADED = ["sfumato.methods", "sfumato.evaluation.evaluate", "sklearn.linear_model", "torch._dynamo"]


class Task(Protocol):
    """Work that leaves its result in files that are written whole, so that a killed command can continue."""

    def finished(self) -> bool:
        """Whether its files are there."""

    def run(self) -> None:
        """Do the work."""


@dataclass(frozen=True)
class Progress:
    """One task is over: how many of how many, which one, and why it failed if it did."""

    done: int
    total: int
    task: str
    failure: str | None

    def __str__(self) -> str:
        ending = "" if self.failure is None else f" FAILED: {self.failure}"
        return f"{self.done} of {self.total}: {self.task}{ending}"


def ignore(progress: Progress) -> None:
    """Report nothing."""


def run_tasks(
    tasks: Sequence[Task],
    *,
    jobs: int,
    in_process: bool = False,
    keep_processes: bool = False,
    minutes: float | None = None,
    report: Callable[[Progress], None] = ignore,
) -> dict[str, str]:
    """Run what is not finished, ``jobs`` at a time.

    Args:
        tasks: In the order in which they start.
        jobs: Processes that share the device and the cores.
        in_process: Run one after another in this process.
        keep_processes: Let a process work on several tasks, which then read a dataset once. Their peak memory is no
            longer their own.
        minutes: Start no task after this time; what has started is finished.
        report: Called after every task.

    Returns:
        The reason for each task that failed or was not started.
    """
    left = [task for task in tasks if not task.finished()]
    deadline = None if minutes is None else time.time() + 60 * minutes
    failed: dict[str, str] = {}

    def note(task: Task, done: int, problem: BaseException | None) -> None:
        reason = None if problem is None else _reason(problem)
        if reason is not None:
            failed[str(task)] = reason
        report(Progress(done, len(left), str(task), reason))

    if in_process:
        for done, task in enumerate(left, start=1):
            try:
                _work(task, deadline)
            except Exception as problem:
                note(task, done, problem)
            else:
                note(task, done, None)
        return failed
    with _pool(max(1, min(jobs, len(left))), keep=keep_processes) as pool:
        futures: dict[Future[None], Task] = {pool.submit(_limited_work, task, deadline): task for task in left}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                note(futures[future], done, future.exception())
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return failed


def begin(out: Path, facts: Mapping[str, Any], *, what: str) -> None:
    """Start a folder with these facts, or continue in one that was started with the same."""
    path, written = out / FACTS, json.loads(json.dumps(facts))
    if path.exists():
        before = json.loads(path.read_text())
        changed = sorted(key for key in {*before, *written} if before.get(key) != written.get(key))
        if changed:
            raise ValueError(f"{out} holds a {what} with another {', '.join(changed)}; choose another --out")
        return
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out} is not empty and holds no {what}; choose another --out")
    private_folder(out)
    write_json(path, written, private=True)


class NotStarted(Exception):
    """The time limit was reached before the task began."""


def _pool(jobs: int, *, keep: bool) -> ProcessPoolExecutor:
    # Batches differ in size; without this the free blocks of device memory do not fit the next one.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return ProcessPoolExecutor(
        jobs,
        mp_context=context,
        initializer=_stay_with_parent,
        initargs=(max(1, (os.cpu_count() or 1) // jobs),),
        # A new process for each task, so that its peak memory is its own.
        max_tasks_per_child=None if keep else 1,
    )


def _reason(problem: BaseException) -> str:
    lines = str(problem).splitlines() or [""]
    # The last line of many, which a traceback is, says most.
    return f"{type(problem).__name__}: {(lines[0] if len(lines) < 4 else lines[-1]).strip()}"


def _limited_work(task: Task, deadline: float | None) -> None:
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _work(task, deadline)


def _work(task: Task, deadline: float | None) -> None:
    if deadline is not None and time.time() > deadline:
        raise NotStarted("the time limit was reached before it began; the same command continues here")
    task.run()


def _stay_with_parent(threads: int) -> None:
    """Few threads, and no life after the command's: a killed command must leave its ledgers unlocked."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
