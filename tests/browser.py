"""A real Chromium without a window, driven over a pipe by its own DevTools protocol and the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PHONE, DESKTOP = (375, 812), (1280, 900)
_PATIENCE = 600.0  # seconds until Chromium counts as hanging, on a machine that does much else


@dataclass
class Visit:
    """What happened while a page was open."""

    session: str
    width: int
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class Browser:
    """``with Browser() as browser: visit = browser.open(page)``; closes Chromium and removes its profile."""

    def __enter__(self) -> Browser:
        found = next((path for name in NAMES if (path := shutil.which(name))), None)
        if found is None:
            raise FileNotFoundError("the browser tests need Chromium: apt-get install chromium, or run 'make test'")
        self._profile = tempfile.mkdtemp(prefix="sfumato-chromium-")
        # Chromium reads commands on descriptor 3 and answers on 4; its ends wait above those until bash moves them.
        (read_end, self._out), (self._in, write_end) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read_end, write_end)]
        script = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]} {theirs[0]}<&- {theirs[1]}>&-'
        words = ["bash", "-c", script, "chromium", found, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(words, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (read_end, write_end, *theirs):
            os.close(end)
        self._last, self._buffer, self._events = 0, b"", []  # type: int, bytes, list[dict[str, Any]]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.ask("Browser.close")
            self._process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, page: Path, size: tuple[int, int] = DESKTOP) -> Visit:
        """Load a file in a tab of this size and wait until it has loaded."""
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable", session=session)
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 600}
        self.ask("Emulation.setDeviceMetricsOverride", metrics, session=session)
        self._events.clear()
        self.ask("Page.navigate", {"url": page.resolve().as_uri()}, session=session)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._message())
        # The event may be that of the empty tab; and one more round trip, so that what the load set off has been told.
        loaded = "document.readyState === 'complete' || new Promise(done => addEventListener('load', done))"
        self.run(f"(async () => {{ await ({loaded}); await new Promise(done => setTimeout(done, 50)) }})()", session)
        visit = Visit(session, size[0])
        for event in self._events:
            if event.get("sessionId") == session:
                _note(event["method"], event["params"], visit)
        return visit

    def run(self, script: str, session: str) -> Any:
        """The value of an expression, once its promise is kept."""
        options = {"expression": script, "awaitPromise": True, "returnByValue": True}
        return self.ask("Runtime.evaluate", options, session=session)["result"].get("value")

    def screenshot(self, visit: Visit, *, height: int | None = None) -> bytes:
        """The page from its top as PNG: all of it, or ``height`` pixels."""
        full = self.run("document.documentElement.scrollHeight", visit.session)
        clip = {"x": 0, "y": 0, "width": visit.width, "height": min(height or full, full), "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        return base64.b64decode(self.ask("Page.captureScreenshot", options, session=visit.session)["data"])

    def print(self, visit: Visit) -> bytes:
        """The page as PDF, on paper of the usual size."""
        options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        return base64.b64decode(self.ask("Page.printToPDF", options, session=visit.session)["data"])

    def ask(self, method: str, params: dict[str, Any] | None = None, *, session: str | None = None) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._last:
            self._events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _message(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium said nothing for {_PATIENCE:.0f} seconds")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise OSError("Chromium has ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


def _note(method: str, params: dict[str, Any], visit: Visit) -> None:
    if method == "Runtime.exceptionThrown":
        visit.problems.append(params["exceptionDetails"]["text"])
    elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
        visit.problems.append(str([argument.get("value") for argument in params["args"]]))
    elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        visit.problems.append(params["entry"]["text"])
    elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith("data:"):
        visit.requests.append(params["request"]["url"])
