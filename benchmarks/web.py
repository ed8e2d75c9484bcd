"""What the local page costs a training beside it, and how long the whole way takes.

    python benchmarks/web.py                                    both, about five minutes on two cores
    python benchmarks/web.py --rounds 1 --seconds 3 --streams 10 --out FOLDER       a rehearsal

It writes docs/results/web.json (into ``--out`` if that is given).

Load: a training with one thread, started from the page, runs while the page is quiet and while it is busy, in turn: 100
open event streams with one event a second each, and two page loads a second (overview, collection, training in turn).
The steps of both are counted on the ledger; the ratio of their rates is the slowdown, and the page loads give a 95th
percentile. Samples of the training are drawn in the background all the time. The clients run on the same machine.

Way: seconds from choosing a file of drawn digits to the exported set, in a browser, waiting for every page.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

# In place of this file's folder, in which ``web`` would be this file.
sys.path[0] = str(Path(__file__).parents[1] / "tests")
from playwright.sync_api import Page  # noqa: E402

from sfumato.experiments.results import current_commit  # noqa: E402
from web.served import SMALL, Served, choose, chromium, served, write_digits  # noqa: E402

RESULTS = Path(__file__).parents[1] / "docs" / "results"
FORM = {"purpose": "publish", "epsilon_stop": "3", "unit": "image", "delta": "1e-5", "colour": "", "classes": "10"}


class Client:
    """Sends the forms of the page without a browser."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.opener: OpenerDirector = build_opener(HTTPCookieProcessor())
        self.opener.open(server.entrance).read()
        self.csrf = re.findall(r'name="csrf" value="(\w+)"', self.get("/browse"))[0]

    def get(self, path: str) -> str:
        return str(self.opener.open(self.server.address + path).read().decode())

    def post(self, path: str, /, **fields: str) -> str:
        """The address that the form leads to."""
        body = urlencode({"csrf": self.csrf, **fields}).encode()
        request = Request(self.server.address + path, body, {"Origin": self.server.address})
        return str(self.opener.open(request).geturl()).removeprefix(self.server.address)

    def finished(self, job: str) -> str:
        """Wait for a job; the address of its result."""
        while 'data-state="done"' not in (page := self.get(job)):
            time.sleep(0.5)
        return re.findall(r'data-next="([^"]+)"', page)[0]

    def cookie(self) -> str:
        jar = next(one for one in self.opener.handlers if isinstance(one, HTTPCookieProcessor)).cookiejar
        return "; ".join(f"{one.name}={one.value}" for one in jar)


def measure_load(root: Path, *, streams: int, seconds: float, rounds: int) -> dict[str, Any]:
    write_digits(root / "digits.npz", 2000)
    with served(root) as server:
        client = Client(server)
        collection = client.finished(client.post("/collections", path="digits.npz"))
        plan = client.post(f"{collection}/plan", **FORM)
        settings = "steps=100000 sampling_rate=0.02"
        job = client.post(f"{plan}/train", method="dp-vae", run="load", settings=settings, limit="1")
        ledger = root / "sfumato" / "ledgers" / f"{collection.rpartition('/')[2]}.jsonl"
        while charges(ledger) < 20:
            time.sleep(0.5)
        quiet, busy, traffic = [], [], Traffic()
        for _ in range(rounds):
            quiet.append(steps_per_second(ledger, partial(time.sleep, seconds)))
            working = load(client, ("/", collection, job), streams, seconds, traffic)
            busy.append(steps_per_second(ledger, partial(asyncio.run, working)))
        client.post(f"{job}/stop")
        while 'data-ended="true"' not in client.get(job):
            time.sleep(0.5)
    ratios = [q / b for q, b in zip(quiet, busy, strict=True)]
    return {
        "streams": streams,
        "seconds": seconds,
        "steps_per_second_quiet": quiet,
        "steps_per_second_busy": busy,
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "events_per_stream_and_second": min(traffic.events) / seconds,
        "page_loads": len(traffic.loads),
        "page_loads_per_second": len(traffic.loads) / (rounds * seconds),
        "page_load_median_seconds": statistics.median(traffic.loads),
        "page_load_p95_seconds": statistics.quantiles(traffic.loads, n=20)[-1],
    }


@dataclass
class Traffic:
    """Seconds of every page load, and the events of every stream."""

    loads: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)


def charges(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def steps_per_second(ledger: Path, work: Callable[[], object]) -> float:
    before, began = charges(ledger), time.perf_counter()
    work()
    return (charges(ledger) - before) / (time.perf_counter() - began)


async def load(client: Client, pages: Sequence[str], streams: int, seconds: float, traffic: Traffic) -> None:
    """Open the streams of the last page, read their events, and load a page twice a second."""
    end = time.perf_counter() + seconds
    readers = [asyncio.create_task(stream(client, pages[-1], end)) for _ in range(streams)]
    for page in itertools.cycle(pages):
        began = time.perf_counter()
        if began >= end:
            break
        await asyncio.to_thread(client.get, page)
        traffic.loads.append(time.perf_counter() - began)
        await asyncio.sleep(max(0.0, 0.5 - (time.perf_counter() - began)))
    traffic.events += await asyncio.gather(*readers)


async def stream(client: Client, job: str, end: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.server.port)
    host = f"127.0.0.1:{client.server.port}"
    writer.write(f"GET {job}/events HTTP/1.1\r\nHost: {host}\r\nCookie: {client.cookie()}\r\n\r\n".encode())
    events = 0
    try:
        while time.perf_counter() < end:
            line = await asyncio.wait_for(reader.readline(), max(0.01, end - time.perf_counter()))
            events += line.startswith(b"data: ")
    except TimeoutError:
        pass
    writer.close()
    return events


def press(page: Page, name: str) -> None:
    """By the keyboard: a click right after scrolling may be delivered to the frame that was there before."""
    page.get_by_role("button", name=name).press("Enter")


def measure_way(root: Path) -> dict[str, float]:
    write_digits(root / "digits.npz", 1000)
    seconds: dict[str, float] = {}
    with served(root) as server, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(300_000)
        page.goto(server.entrance)
        began = last = time.perf_counter()

        def lap(name: str) -> None:
            nonlocal last
            seconds[name] = time.perf_counter() - last
            last = time.perf_counter()

        choose(page, "digits.npz")
        lap("inspect")
        press(page, "Show the plan")
        page.wait_for_url("**/plans/*")
        lap("plan of every method")
        page.get_by_role("radio", name="dp-merf").check()
        page.get_by_label("name of the run").fill("way")
        page.get_by_label("settings").fill(SMALL)
        press(page, "Start the training")
        page.wait_for_url("**/runs/way")
        lap("train and report")
        press(page, "Compare with the real images")
        page.wait_for_url("**/jobs/*")
        page.wait_for_url("**/runs/way")
        lap("review")
        press(page, "Run the audits")
        page.wait_for_url("**/jobs/*")
        page.wait_for_url("**/runs/way")
        lap("audits")
        page.goto(f"{server.address}/runs/way/release")
        press(page, "Export")
        page.wait_for_url("**/jobs/*")
        page.wait_for_url("**/release")
        lap("export")
        seconds["the whole way"] = time.perf_counter() - began
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the training, too
    result: dict[str, Any] = {
        "command": " ".join(["python benchmarks/web.py", *sys.argv[1:]]),
        "commit": current_commit(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in ("load", "way"):
            (Path(folder) / name).mkdir()
        options = {"streams": given.streams, "seconds": given.seconds, "rounds": given.rounds}
        result["load"] = measure_load(Path(folder) / "load", **options)
        result["way"] = measure_way(Path(folder) / "way")
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "web.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
