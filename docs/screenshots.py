"""Make the pictures of report.md from drawn digits: a comparison, a report of one of its runs, a browser.

    PYTHONPATH=tests python docs/screenshots.py FOLDER [COMPARISON]

``FOLDER`` keeps the comparison; with one that is finished only the pictures are made again. ``COMPARISON`` is another
finished comparison, whose page is shown instead of the digits'. docs/images gets the pictures.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from browser import PHONE, Browser
from sfumato.data.digits import draw_digits

IMAGES = Path(__file__).parent / "images"
SETTINGS = ("features=1000", "iterations=500", "batch_size=100", "learning_rate=0.003", "length_scale=5")
WINDOW = (960, 900)


def main(folder: Path, shown: Path | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("digits", 3000, 1), ("fresh", 1000, 2)):
        drawn = draw_digits(count, seed=seed)
        np.savez(folder / f"{name}.npz", images=drawn.pixels[:, 0], labels=drawn.labels)
    out = folder / "comparison"
    words = ["compare", str(folder / "digits.npz"), "--test", str(folder / "fresh.npz"), "--classes", "10"]
    words += ["--methods", "dp-merf", "--epsilon", "1,3,10", "--seeds", "2", "--out", str(out)]
    words += ["--images", "2000", "--no-inception", "--device", "cpu"]
    sfumato(*words, *(word for setting in SETTINGS for word in ("--set", setting)))
    run = out / "runs" / "dp-merf" / "epsilon-10" / "run-0"
    sfumato("report", str(run))
    pages = {
        "public": run / "public.html",
        "internal": run / "internal" / "internal.html",
        "comparison": (shown or out) / "comparison.html",
    }
    IMAGES.mkdir(exist_ok=True)
    with Browser() as browser:
        for name, page in pages.items():
            for kind, size, height in (("desktop", WINDOW, 1300), ("phone", PHONE, 1250)):
                visit = browser.open(page, size)
                if visit.problems:
                    raise RuntimeError(f"{page}: {visit.problems}")
                picture = Image.open(io.BytesIO(browser.screenshot(visit, height=height))).convert("RGB")
                # Maximum coverage keeps the few greens and reds that a small palette would lose.
                small = picture.quantize(80, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
                small.save(IMAGES / f"{name}-{kind}.png", optimize=True)


def sfumato(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "sfumato", *words], check=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
