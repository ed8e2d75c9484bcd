"""Make the pictures of report.md from drawn digits: one run, its evaluation and report, and a browser.

    PYTHONPATH=tests python docs/screenshots.py FOLDER [COMPARISON]

``FOLDER`` keeps the run; with one that is finished only the pictures are made again. ``COMPARISON`` is a finished
comparison, whose page is shown as well. The pictures are written to docs/images.
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


def main(folder: Path, comparison: Path | None = None) -> None:
    run = folder / "run"
    if not (run / "public.html").exists():
        make_run(folder, run)
    pages = {"public": run / "public.html", "internal": run / "internal" / "internal.html"}
    if comparison is not None:
        pages["comparison"] = comparison / "comparison.html"
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


def make_run(folder: Path, run: Path) -> None:
    """Train DP-MERF on drawn digits, evaluate 2,000 samples and write the report."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"digits": draw_digits(3000, seed=1), "fresh": draw_digits(1000, seed=2)}
    for name, drawn in data.items():
        np.savez(folder / f"{name}.npz", images=drawn.pixels[:, 0], labels=drawn.labels)
    digits, fresh, synthetic = (str(folder / name) for name in ("digits.npz", "fresh.npz", "synthetic"))
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    sfumato("train", digits, "--method", "dp-merf", "--epsilon", "1", "--classes", "10", "--out", str(run), *settings)
    sfumato("sample", str(run), "--count", "2000", "--out", synthetic)
    results = ["--json", str(run / "internal" / "evaluation.json")]
    results += ["--neighbours", str(run / "internal" / "neighbours.png")]
    real = ["--real", digits, "--real-test", fresh, "--seeds", "2", "--no-inception", "--device", "cpu"]
    sfumato("evaluate", synthetic, *real, *results)
    sfumato("report", str(run))


def sfumato(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "sfumato", *words], check=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
