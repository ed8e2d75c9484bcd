"""Refuse side effects of a function: files, processes, threads, sockets, environment, terminal, logs, warnings."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch

Refuse = Callable[[str], None]

_EVENTS = {
    "os.fork": "it starts a process",
    "os.posix_spawn": "it starts a process",
    "os.putenv": "it sets an environment variable",
    "os.system": "it starts a process",
    "subprocess.Popen": "it starts a process",
    "socket.connect": "it opens a connection",
    "socket.sendto": "it opens a connection",
    "os.mkdir": "it changes files",
    "os.remove": "it changes files",
    "os.rename": "it changes files",
    "os.truncate": "it changes files",
    "sqlite3.connect": "it opens a database",
    "tempfile.mkstemp": "it writes a file",
    "tempfile.mkdtemp": "it writes a file",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_TORCH = str(Path(torch.__file__).parent)

_watchers: list[tuple[Callable[[], bool], Refuse]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """The hook that the interpreter calls before each of these events; without a watcher it does nothing."""
    if not _watchers:
        return
    active, refuse = _watchers[-1]
    if not active():
        return
    if event in _EVENTS:
        refuse(_EVENTS[event])
    elif event == "open" and _writes(*arguments):
        refuse("it writes a file")


def _writes(path: object, mode: object, flags: object) -> bool:
    if str(path).endswith(".pyc"):  # an import may store what it compiled
        return False
    return any(letter in str(mode or "") for letter in "wax+") or bool(isinstance(flags, int) and flags & _WRITING)


@contextlib.contextmanager
def no_side_effects(active: Callable[[], bool], refuse: Refuse) -> Iterator[None]:
    """Call ``refuse`` at every side effect that happens inside while ``active()`` is true."""
    if _audit not in _installed:
        # An audit hook cannot be removed, so there is one for the process, and it is idle outside of this context.
        sys.addaudithook(_audit)
        _installed.append(_audit)
    handler = _Refusing(active, refuse)
    _watchers.append((active, refuse))
    logging.getLogger().addHandler(handler)
    traced = threading.gettrace()
    threading.settrace(_in_threads(active, refuse))
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(_Stream(sys.stdout, active, refuse)))
            stack.enter_context(contextlib.redirect_stderr(_Stream(sys.stderr, active, refuse)))
            raised = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            yield
    finally:
        threading.settrace(cast(Any, traced))
        logging.getLogger().removeHandler(handler)
        _watchers.pop()
    for warning in raised or []:
        # A ResourceWarning comes from the finaliser of whatever object happens to be collected meanwhile.
        if not warning.filename.startswith(_TORCH) and not issubclass(warning.category, ResourceWarning):
            refuse("it raises a warning")


_installed: list[object] = []


def _in_threads(active: Callable[[], bool], refuse: Refuse) -> Callable[..., None]:
    """Called by the interpreter at the first line of every new thread, where torch's modes do not reach."""

    def trace(frame: object, event: str, argument: object) -> None:
        if active():
            refuse("it starts a thread")

    return trace


class _Stream(io.TextIOBase):
    """Refuses what a restricted function writes and passes on everything else."""

    def __init__(self, stream: Any, active: Callable[[], bool], refuse: Refuse) -> None:
        self._stream, self._active, self._refuse = stream, active, refuse

    def write(self, text: str) -> int:
        if self._active():
            self._refuse("it writes to the terminal")
        return int(self._stream.write(text) or 0)


class _Refusing(logging.Handler):
    def __init__(self, active: Callable[[], bool], refuse: Refuse) -> None:
        super().__init__()
        self._active, self._refuse = active, refuse

    def emit(self, record: logging.LogRecord) -> None:
        if self._active() and not record.name.startswith("torch"):
            self._refuse("it writes a log line")
