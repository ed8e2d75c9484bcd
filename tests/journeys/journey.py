"""What journeys share: the command line as a user runs it, made-up files, and pages in a real browser."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PIL import Image

from browser import DESKTOP, PHONE, Browser
from sfumato.data.digits import draw_digits

SMALL = ("--set", "features=200", "--set", "iterations=100", "--set", "batch_size=50", "--device", "cpu")
MERF = ("--method", "dp-merf", *SMALL)
EVALUATION = ("--no-inception", "--seeds", 1, "--protocol", "dppm", "--no-cache", "--device", "cpu")


def sfumato(*arguments: str | Path | float, status: int = 0) -> str:
    """Run a command to its end and return what it prints."""
    words = [sys.executable, "-m", "sfumato", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    assert done.returncode == status, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def digit_folder(place: Path, *, count: int, seed: int, name: str = "{row:05d}.png") -> Path:
    """A folder with a sub-folder of image files for each digit."""
    drawn = draw_digits(count, seed=seed)
    for row, (pixels, label) in enumerate(zip(drawn.pixels, drawn.labels, strict=True)):
        folder = place / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(folder / name.format(row=row, person=row // 5))
    return place


def check_pages(*pages: Path, said: str = "") -> None:
    """Open every page at both widths: no problem, no request, nothing wider than the window; ``said`` is on each."""
    with Browser() as browser:
        for page in pages:
            for size in (PHONE, DESKTOP):
                visit = browser.open(page, size)
                assert visit.problems == [], page
                assert browser.run("document.documentElement.scrollWidth", visit.session) <= size[0], page
                assert said in str(browser.run("document.body.innerText", visit.session)), page


def reported(run: Path, said: str = "") -> None:
    """Write the pages of a run and look at them."""
    sfumato("report", run)
    check_pages(run / "public.html", run / "internal" / "internal.html", run / "release" / "card.html")
    if said:
        check_pages(run / "public.html", said=said)
