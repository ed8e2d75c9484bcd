"""Make the pictures of report.md from drawn digits: a run with its report, and a browser.

    PYTHONPATH=tests python docs/screenshots.py FOLDER

``FOLDER`` keeps the run; with one that is finished only the pictures are made again. The pictures
are written to docs/images.
"""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from browser import DESKTOP, PHONE, Browser
from sfumato.data.digits import draw_digits

IMAGES = Path(__file__).parent / "images"
SETTINGS = ("features=1000", "iterations=500", "batch_size=100", "learning_rate=0.003", "length_scale=5")
NOTES = ("purpose=teaching", "controller=Example Hospital", "contact=data@example.org", "retention=until 2030")


def main(folder: Path) -> None:
    """Make all pictures."""
    run = folder / "run"
    if not (run / "public.html").exists():
        make_run(folder, run)
    show({"public": run / "public.html", "internal": run / "internal" / "internal.html"})


def show(pages: dict[str, Path]) -> None:
    """Write a picture of the upper part of each page at both widths."""
    IMAGES.mkdir(exist_ok=True)
    with Browser() as browser:
        for name, page in pages.items():
            for kind, size, height in (("desktop", DESKTOP, 1700), ("phone", PHONE, 1400)):
                visit = browser.open(page, size)
                if visit.problems:
                    raise RuntimeError(f"{page}: {visit.problems}")
                picture = Image.open(io.BytesIO(browser.screenshot(visit, height=height))).convert("RGB")
                # Maximum coverage keeps the few greens and reds that a small palette would lose.
                small = picture.quantize(80, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
                small.save(IMAGES / f"{name}-{kind}.png", optimize=True)


def make_run(folder: Path, run: Path) -> None:
    """Train DP-MERF on drawn digits, evaluate 2,000 samples, audit and write the report."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"digits": draw_digits(3000, seed=1), "fresh": draw_digits(1000, seed=2)}
    for name, drawn in data.items():
        np.savez(folder / f"{name}.npz", images=drawn.pixels[:, 0], labels=drawn.labels)
    digits, fresh, synthetic = (str(folder / name) for name in ("digits.npz", "fresh.npz", "synthetic"))
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    settings += [word for note in NOTES for word in ("--note", note)]
    words = ("--method", "dp-merf", "--epsilon", "1", "--classes", "10", "--declared-size", "3000")
    sfumato("train", digits, *words, "--release-accuracy", "30", "--out", str(run), *settings)
    sfumato("sample", str(run), "--count", "2000", "--out", synthetic)
    real = ["--real", digits, "--real-test", fresh, "--seeds", "2", "--no-inception", "--device", "cpu"]
    sfumato("evaluate", synthetic, *real, "--run", str(run))
    sfumato("audit", "release", str(run), "--pairs", "4")
    sfumato("report", str(run))


def sfumato(*words: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "sfumato", *words], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
