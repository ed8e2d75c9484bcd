"""Which tests execute a line, measured once, and tests that run in a fork of a process with torch loaded already."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_LIBRARIES = ("torch", "torch.func", "scipy.stats", "dp_accounting", "dp_accounting.pld", "dp_accounting.rdp")
_QUIET = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"]
_MEMORY = 10 << 30
_NO_IMPORT = "the tests could not be imported"
TEST_FAILED = "a test failed"
_HOW = {1: TEST_FAILED, 2: _NO_IMPORT, 4: _NO_IMPORT, -signal.SIGALRM: "the tests did not end"}


def preload() -> None:
    """Import what every test needs, except the package under test."""
    for name in _LIBRARIES:
        importlib.import_module(name)


class _Tracer:
    """A pytest plugin that records the lines of ``folder`` that each test executes, and the test's seconds."""

    def __init__(self, folder: Path) -> None:
        self.prefix = f"{folder}/"
        self.found: dict[str, dict[str, Any]] = {}
        self._lines: dict[str, set[int]] = {}

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.prefix):
            return None
        lines = self._lines.setdefault(name.removeprefix(self.prefix), set())

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
    """The lines of ``privacy/`` that each test executes, by name of the file, and its seconds with the tracer on."""

    by_test: dict[str, dict[str, Any]]

    @classmethod
    def measured(cls, copy: Path, tests: Path, store: Path | None = None) -> Coverage:
        """Run all tests once under the tracer, each file in a process of its own.

        What ``store`` holds about a file of tests is taken from there, unless the file or the sources have changed.
        """
        sources = copy / "src" / "sfumato" / "privacy"
        state = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources.rglob("*.py"))))
        known = json.loads(store.read_text()) if store and store.exists() else {}
        for path in sorted(tests.rglob("test_*.py")):
            own = state.copy()
            own.update(path.read_bytes())
            if known.get(path.name, {}).get("state") != own.hexdigest():
                known[path.name] = {"state": own.hexdigest(), "tests": _traced(copy, path, sources)}
            if store:
                store.write_text(json.dumps(known))
        return cls({name: facts for one in known.values() for name, facts in one["tests"].items()})

    def tests(self, name: str, line: int, *, seconds: float) -> list[str]:
        """Tests that execute the line, the quickest first, up to ``seconds``.

        Constants, defaults and class bodies are executed when a file is imported; then it is the tests that execute
        something of the file.
        """
        touching = [item for item in self.by_test.items() if name in item[1]["lines"]]
        touching = [item for item in touching if line in item[1]["lines"][name]] or touching
        chosen, total = [], 0.0
        for test, facts in sorted(touching, key=lambda item: item[1]["seconds"]):
            total += facts["seconds"]
            if chosen and total > seconds:
                break
            chosen.append(test)
        return chosen


def _traced(copy: Path, path: Path, sources: Path) -> dict[str, dict[str, Any]]:
    out = copy / "coverage.json"
    if (child := os.fork()) == 0:
        _enter(copy)
        tracer = _Tracer(sources)
        status = pytest.main([*_QUIET, str(path)], plugins=[tracer])
        out.write_text(json.dumps(tracer.found))
        os._exit(int(status))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError(f"the tests of {path.name} do not pass without a defect")
    found: dict[str, dict[str, Any]] = json.loads(out.read_text())
    return found


def forked_tests(copy: Path, tests: Sequence[str], *, seconds: float) -> str | None:
    """How these tests fail, or ``None`` if they pass; without an end in ``seconds`` or in memory they have failed."""
    if not tests:
        return None
    if (child := os.fork()) == 0:
        os.setpgid(0, 0)
        signal.alarm(int(seconds))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        _enter(copy)
        os._exit(int(pytest.main([*_QUIET, "-m", "", *tests])))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes that a test has started and left behind
    return _HOW.get(status, f"status {status}") if status else None


def _enter(copy: Path) -> None:
    """Run in the copy, silently; no compiled file is kept, because it could outlive the defect that it contains."""
    os.chdir(copy)
    sys.path.insert(0, str(copy / "src"))
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
