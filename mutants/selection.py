"""Which tests execute a line, measured once, and tests that run in a fork of a process with torch loaded already."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_LIBRARIES = ("torch", "torch.func", "scipy.stats", "dp_accounting", "dp_accounting.pld", "dp_accounting.rdp")
_QUIET = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"]


def preload() -> None:
    """Import what every test needs, except the package under test."""
    for name in _LIBRARIES:
        importlib.import_module(name)


class _Tracer:
    """A pytest plugin that records the lines of ``folder`` that each test executes, and the test's seconds."""

    def __init__(self, folder: Path) -> None:
        self.prefix = str(folder)
        self.found: dict[str, dict[str, Any]] = {}
        self._lines: dict[str, set[int]] = {}

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.prefix):
            return None
        lines = self._lines.setdefault(name, set())

        def line(frame: FrameType, event: str, argument: object) -> Any:
            lines.add(frame.f_lineno)
            return line

        return line

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._lines, start = {}, time.monotonic()
        sys.settrace(self._trace)
        yield
        sys.settrace(None)
        lines = {name: sorted(found) for name, found in self._lines.items()}
        self.found[item.nodeid] = {"seconds": time.monotonic() - start, "lines": lines}


@dataclass(frozen=True)
class Coverage:
    """The lines that each test executes, and how long it takes with the tracer on."""

    by_test: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def measured(cls, copy: Path, tests: Path) -> Coverage:
        """Run all tests once under the tracer, each file in a process of its own."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(tests.rglob("test_*.py")):
            out = copy / "coverage.json"
            if (child := os.fork()) == 0:
                _enter(copy)
                tracer = _Tracer(copy / "src" / "sfumato")
                status = pytest.main([*_QUIET, str(path)], plugins=[tracer])
                out.write_text(json.dumps(tracer.found))
                os._exit(int(status))
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                raise RuntimeError(f"the tests of {path.name} do not pass without a defect")
            found |= json.loads(out.read_text())
        return cls(found)

    def tests(self, path: Path, line: int, *, seconds: float) -> list[str]:
        """Tests that execute the line, then those that execute its file, the quickest first, up to ``seconds``."""

        def order(item: tuple[str, dict[str, Any]]) -> tuple[bool, float]:
            return line not in item[1]["lines"][str(path)], item[1]["seconds"]

        touching = sorted((item for item in self.by_test.items() if str(path) in item[1]["lines"]), key=order)
        chosen, total = [], 0.0
        for name, facts in touching:
            total += facts["seconds"]
            if chosen and total > seconds:
                break
            chosen.append(name)
        return chosen


def forked_tests(copy: Path, tests: Sequence[str], *, seconds: float) -> int:
    """The exit status of pytest on these tests; after ``seconds`` the tests are stopped, which counts as a failure."""
    if not tests:
        return 0
    if (child := os.fork()) == 0:
        signal.alarm(int(seconds))
        _enter(copy)
        os._exit(int(pytest.main([*_QUIET, *tests])))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _enter(copy: Path) -> None:
    os.chdir(copy)
    sys.path.insert(0, str(copy / "src"))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
