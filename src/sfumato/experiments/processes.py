"""Many tasks, several at a time, each in a process of its own. A task that is finished is not done again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Protocol

import typer

from sfumato.cli.console import errors


class Task(Protocol):
    """Work that leaves its result in files that are written whole, so that a killed command can go on."""

    def finished(self) -> bool: ...
    def do(self) -> None: ...


def run_tasks(tasks: Sequence[Task], *, jobs: int, here: bool = False) -> dict[str, str]:
    """Do what is not done yet, ``jobs`` at a time; what failed, and why. ``here`` works in this process, one by one."""
    left = [task for task in tasks if not task.finished()]
    failed: dict[str, str] = {}

    def note(task: Task, done: int, problem: BaseException | None) -> None:
        if problem is not None:
            lines = str(problem).splitlines() or [""]
            # The last line of many, which a traceback is, says most.
            failed[str(task)] = f"{type(problem).__name__}: {(lines[0] if len(lines) < 4 else lines[-1]).strip()}"
        ending = "" if problem is None else f" FAILED: {failed[str(task)]}"
        errors.print(f"{done} of {len(left)}: {task}{ending}", markup=False, highlight=False, soft_wrap=True)

    try:
        if here:
            for done, task in enumerate(left, start=1):
                try:
                    task.do()
                except Exception as problem:
                    note(task, done, problem)
                else:
                    note(task, done, None)
            return failed
        jobs = max(1, min(jobs, len(left)))
        # A fresh process for each task, so that its peak memory is its own.
        pool = ProcessPoolExecutor(
            jobs,
            mp_context=get_context("spawn"),
            initializer=stay_with_parent,
            initargs=(max(1, (os.cpu_count() or 1) // jobs),),
            max_tasks_per_child=1,
        )
        try:
            futures: dict[Future[None], Task] = {pool.submit(_work, task): task for task in left}
            for done, future in enumerate(as_completed(futures), start=1):
                note(futures[future], done, future.exception())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    except KeyboardInterrupt:
        errors.print("\nStopped. The same command goes on from here; the ledgers hold what was spent.")
        raise typer.Exit(130) from None
    return failed


def _work(task: Task) -> None:
    import torch  # here, so that the process has said how many threads it may have

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task.do()


def stay_with_parent(threads: int) -> None:
    """Few threads, and no life after the command's: a killed command must leave its ledgers unlocked."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
