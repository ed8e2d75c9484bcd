"""Make the pictures of report.md from drawn digits: a comparison, a report of one of its runs, a browser.

    PYTHONPATH=tests python docs/screenshots.py FOLDER

``FOLDER`` keeps the comparison; with one that is finished only the pictures are made again. docs/images gets them.
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
SETTINGS = ("features=1000", "iterations=500", "batch=100", "learning_rate=0.003", "length_scale=5")
WINDOW = (960, 900)


def main(folder: Path) -> None:
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
        "comparison": out / "comparison.html",
    }
    IMAGES.mkdir(exist_ok=True)
    with Browser() as browser:
        for name, page in pages.items():
            for kind, size, height in (("desktop", WINDOW, 1700), ("phone", PHONE, 1500)):
                visit = browser.open(page, size)
                if visit.problems:
                    raise RuntimeError(f"{page}: {visit.problems}")
                picture = Image.open(io.BytesIO(browser.screenshot(visit, height=height))).convert("RGB")
                small = picture.quantize(32, dither=Image.Dither.NONE)
                small.save(IMAGES / f"{name}-{kind}.png", optimize=True)


def sfumato(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "sfumato.cli", *words], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
