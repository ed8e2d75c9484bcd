"""What a command prints: results on standard output; remarks, progress and errors on standard error.

Progress shows public numbers only. ``--quiet`` leaves results and errors.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from sfumato.files import json_text, write_json
from sfumato.texts import duration

console = Console()
errors = Console(stderr=True)

_flags = {"quiet": False, "traceback": False}
_progress_file: list[Path] = []


def use_quiet(value: bool) -> bool:
    """Callback of ``--quiet``, before the command or after its name."""
    _flags["quiet"] |= value
    return value


def use_traceback(value: bool) -> bool:
    """Callback of ``--traceback``."""
    _flags["traceback"] |= value
    return value


def use_progress_file(value: Path | None) -> Path | None:
    """Callback of ``--progress-file``."""
    if value is not None:
        _progress_file[:] = [value]
    return value


def reset_flags() -> None:
    """Forget the flags of an earlier command in the same process."""
    _flags.update(quiet=False, traceback=False)
    _progress_file.clear()


def wants_traceback() -> bool:
    """Whether ``--traceback`` was given."""
    return _flags["traceback"]


def say(text: str) -> None:
    """Print a line of the result."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def remark(text: str) -> None:
    """Print a line that is not the result; ``--quiet`` leaves it out."""
    if not _flags["quiet"]:
        errors.print(text, soft_wrap=True, markup=False, highlight=False)


def warn(text: str) -> None:
    """Print a warning, also with ``--quiet``."""
    errors.print(text, soft_wrap=True, markup=False, highlight=False, style="yellow")


def print_json(value: Any) -> None:
    """Print ``value`` as JSON."""
    print(json_text(value), end="")


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table of the result."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    for place, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)


class ProgressBar:
    """Shows reports of ``(name, done, total, ε so far)``: a bar on a terminal, a line for each tenth elsewhere.

    A total of 0 stands for work whose amount is unknown or private: it shows that something happens, and no number.
    With ``still`` the bar is drawn by reports alone, for audits that compare what their runs print.
    """

    def __init__(self, *, still: bool = False) -> None:
        self._lines = not sys.stderr.isatty()
        self._still = still
        self._tenths: dict[str, int] = {}
        self._started: dict[str, tuple[float, int]] = {}
        self._tasks: dict[str, TaskID] = {}
        self._file = ProgressFile(_progress_file[0]) if _progress_file else None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[cost]}"),
            console=errors,
            disable=self._lines or _flags["quiet"],
            auto_refresh=not still,
            redirect_stdout=not still,
            redirect_stderr=not still,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._file is not None:
            self._file.write()

    def report(self, name: str, done: int, total: int, epsilon: float | None = None) -> None:
        """Show that ``done`` of ``total`` steps of the part ``name`` are done."""
        cost = "" if epsilon is None else "ε ∞" if math.isinf(epsilon) else f"ε {epsilon:.3g}"
        if self._file is not None:
            self._file.report(name, done, total, epsilon)
        if _flags["quiet"]:
            return
        if self._lines:
            self._report_line(name, done, total, cost)
            return
        if name not in self._tasks:
            self._tasks[name] = self._bar.add_task(name, total=total or None, cost="")
        elif done < self._bar.tasks[self._tasks[name]].completed:
            self._bar.reset(self._tasks[name])  # a counter that begins again is timed anew
        self._bar.update(self._tasks[name], completed=done, total=total or None, cost=cost, refresh=self._still)

    def _report_line(self, name: str, done: int, total: int, cost: str) -> None:
        tenth, now = 10 * done // total if total else 0, time.monotonic()
        if tenth == self._tenths.get(name):
            return
        if tenth < self._tenths.get(name, 11):
            self._started[name] = now, done  # a counter that begins again is timed anew
        self._tenths[name] = tenth
        started, first = self._started[name]
        words = [f"{name} …" if not total else f"{name}: {done} of {total}", cost]
        if first < done < total and (left := (now - started) * (total - done) / (done - first)) >= 10:
            words.append(f"about {duration(left)} left")
        print(", ".join(word for word in words if word), file=sys.stderr, flush=True)


class ProgressFile:
    """The same reports as a JSON file for another program to read: ``parts`` with name, done and total, and ε so far.

    It is replaced as a whole, at most once a second. A total of 0 hides the number that is done, as on a terminal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: dict[str, dict[str, int | str]] = {}
        self._epsilon: float | None = None
        self._written = 0.0

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
        """Take a report over, and write the file if the last time is long enough ago."""
        self._parts[name] = {"name": name, "done": done if total else 0, "total": total}
        # JSON has no infinity; a run without a guarantee has no ε to show.
        self._epsilon = epsilon if epsilon is not None and math.isfinite(epsilon) else self._epsilon
        if time.monotonic() - self._written >= 1.0:
            self.write()

    def write(self) -> None:
        write_json(self._path, {"parts": list(self._parts.values()), "epsilon": self._epsilon}, private=True)
        self._written = time.monotonic()
