"""A server of the local page in a process of its own, and a browser in front of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from browser import NAMES
from sfumato.data.digits import draw_digits

SMALL = "features=100 iterations=20 batch_size=20"
PATIENCE = 600_000  # milliseconds until a page counts as hanging, on a machine that does much else

expect.set_options(timeout=PATIENCE)


class Served:
    """``sfumato web`` on a free port."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sfumato", "web", "--root", str(root), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.fullmatch(r"Open (http://127\.0\.0\.1:(\d+))/\?token=(\S+)\n", line)
        assert found, line
        self.address, self.port, self.token = found[1], int(found[2]), found[3]

    @property
    def entrance(self) -> str:
        return f"{self.address}/?token={self.token}"

    def kill(self) -> None:
        """As hard as possible: no chance to tidy up."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(300)


@contextlib.contextmanager
def served(root: Path) -> Iterator[Served]:
    server = Served(root)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    path = next(found for name in NAMES if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=flags, timeout=PATIENCE)
        yield browser
        browser.close()


def write_digits(path: Path, count: int = 300) -> Path:
    drawn = draw_digits(count, seed=1)
    np.savez(path, images=drawn.pixels[:, 0], labels=drawn.labels)
    return path


def write_classes(path: Path, count: int, classes: Sequence[str]) -> Path:
    """Drawn digits as PNG files, a folder for each class."""
    for number, pixels in enumerate(draw_digits(count, seed=1).pixels):
        file = path / classes[number % len(classes)] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(file)
    return path


def choose(page: Page, name: str) -> None:
    """From the list of files to the inspected collection."""
    page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/", 3)[2] + "/browse")
    page.get_by_role("button", name=f"Use {name}").press("Enter")
    page.wait_for_url("**/collections/*")
