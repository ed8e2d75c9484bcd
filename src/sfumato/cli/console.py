"""What a person sees while something runs: a bar on a terminal, plain lines elsewhere. Public numbers only."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

console = Console()
errors = Console(stderr=True)


class ProgressBar:
    """Reports of ``(name, done, total, ε so far)``, shown on standard error so that output can be piped."""

    def __init__(self) -> None:
        self._lines = not sys.stderr.isatty()
        self._shown: dict[str, int] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[cost]}"),
            console=errors,
            disable=self._lines,
        )

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
        cost = "" if epsilon is None else f"ε {epsilon:.3g}"
        if self._lines:
            tenth = 10 * done // max(1, total)
            if tenth != self._shown.get(name):
                self._shown[name] = tenth
                print(f"{name}: {done} of {total}{', ' if cost else ''}{cost}", file=sys.stderr, flush=True)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=total, cost="")
        self._bar.update(self._tasks[name], completed=done, total=total, cost=cost)
