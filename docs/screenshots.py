"""Make the pictures of report.md from drawn digits: a run with its report, and a browser.

    PYTHONPATH=tests python docs/screenshots.py FOLDER

``FOLDER`` keeps the run; with one that is finished only the pictures are made again. The comparison is that of
docs/results/comparison.md, rendered from its numbers without its samples. The pictures are written to docs/images.
"""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
from PIL import Image

from browser import DESKTOP, PHONE, Browser
from sfumato.data.digits import draw_digits
from sfumato.experiments.comparison import ComparedMethod, ComparedMetric, ComparisonResult, Summary
from sfumato.experiments.results import ResultRow, ResultSet
from sfumato.release.pages import data_address
from sfumato.report.comparison import comparison_page

IMAGES = Path(__file__).parent / "images"
SETTINGS = ("features=1000", "iterations=500", "batch_size=100", "learning_rate=0.003", "length_scale=5")
NOTES = ("purpose=teaching", "controller=Example Hospital", "contact=data@example.org", "retention=until 2030")
RESULTS = Path(__file__).parent / "results" / "transcribed-comparison.json"


def main(folder: Path) -> None:
    """Make all pictures."""
    run, comparison = folder / "run", folder / "comparison.html"
    if not (run / "public.html").exists():
        make_run(folder, run)
    comparison.write_text(comparison_text(), encoding="utf-8")
    show({"public": run / "public.html", "internal": run / "internal" / "internal.html", "comparison": comparison})


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


def comparison_text() -> str:
    """The page of the comparison on MNIST, from its result file."""
    rows = ResultSet.load(RESULTS).rows
    facts = {"data": "mnist", "protocol": "sinkhorn", "unit": "image", "images": 10_000}
    about = {"versions": {}, "counts": None, "left_out": []}
    composed = {"epsilon": 84.6, "delta": 1e-5, "ledgers": 36}
    result = ComparisonResult(facts, "cuda", about, composed, tuple(map(entry, rows)), (), {})
    blank = data_address(Image.new("L", (1, 1), 255))
    return comparison_page(result, [blank] * len(rows))


def entry(row: ResultRow) -> ComparedMethod:
    """A row of the result file as an entry of a comparison."""

    def summary(name: str, scale: float = 1.0) -> Summary:
        found = row.values[name]
        return Summary(found.mean * scale, None if found.std is None else found.std * scale, ())

    metrics = []
    for name in ("LR", "MLP", "CNN"):
        about = {"heading": f"{name} accuracy, % ↑", "metric": "accuracy", "classifier": name}
        metrics.append(ComparedMetric(**asdict(summary(name, 0.01)), **about))
    metrics.append(ComparedMetric(**asdict(summary("FID")), heading="FID ↓", metric="fid"))
    return ComparedMethod(
        method=row.method or "",
        variant="certified",
        name=row.method or "",
        paper="",
        parameters={},
        epsilon=row.epsilon or 0.0,
        spent=row.epsilon or 0.0,
        runs=("0", "1"),
        metrics=tuple(metrics),
        worst_class=None,
        seconds=summary("seconds"),
        peak_memory=summary("peak MiB", 2.0**20),
        peak_device_memory=summary("peak MiB of the device", 2.0**20).mean,
        threads=1,
        resumed=0,
    )


def sfumato(*words: str) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "sfumato", *words], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
