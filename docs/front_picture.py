"""Make docs/images/front.png: real images beside certified synthetic ones of DP-Mixture at ε 1 and 10.

    python docs/front_picture.py DATA OUT [OUT …]

``DATA`` is the folder with ``mnist`` and ``fashion-mnist``, each ``OUT`` the folder of an experiment of
experiments/dp-mixture.toml; the trainings are on docs/results/dp-mixture.md. MNIST and Fashion-MNIST are public.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

import sfumato as sf
from sfumato.release.pages import grid

IMAGES = Path(__file__).parent / "images"
CLASSES, SHOWN, SCALE = 10, 3, 2
CELL = 30  # pixels of a cell of a grid
GAP, LABEL, TITLE = 24, 40, 46
BUDGETS = (1, 10)
DATASETS = (("mnist", "MNIST"), ("fashion-mnist", "Fashion-MNIST"))


def main(data: Path, outs: list[Path]) -> None:
    """Write the picture: a column for each dataset, a row of panels for real images and for each ε."""
    width, height = CLASSES * CELL * SCALE, SHOWN * CELL * SCALE
    titles = ("real", *(f"synthetic, ε = {budget}" for budget in BUDGETS))
    size = (len(DATASETS) * (width + GAP) - GAP, TITLE + len(titles) * (height + LABEL))
    picture = Image.new("L", size, 255)
    draw = ImageDraw.Draw(picture)
    for column, (name, title) in enumerate(DATASETS):
        x = column * (width + GAP)
        draw.text((x, 2), title, font=font(32), fill=0)
        panels = [real_images(data / name), *(drawn_images(outs, name, budget) for budget in BUDGETS)]
        for row, (panel, text) in enumerate(zip(panels, titles, strict=True)):
            y = TITLE + row * (height + LABEL)
            draw.text((x, y + 4), text, font=font(24), fill=60)
            picture.paste(panel.resize((width, height), Image.Resampling.NEAREST), (x, y + LABEL))
    picture.quantize(32).save(IMAGES / "front.png", optimize=True)


def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which has ε and comes with matplotlib."""
    return ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)


def real_images(folder: Path) -> Image.Image:
    """The first images of each class of the test split."""
    images = sf.read(folder, split="test", classes=CLASSES)
    labels = np.asarray(images.labels)
    rows = np.concatenate([np.flatnonzero(labels == label)[:SHOWN] for label in range(CLASSES)])
    return panel(np.asarray(images.pixels)[rows])


def drawn_images(outs: list[Path], name: str, budget: int) -> Image.Image:
    """The first images of each class that a release draws."""
    [run] = [run for out in outs for run in out.glob(f"*/{name}/runs/*/epsilon-{budget}/run-0/release")]
    labels = np.repeat(np.arange(CLASSES), SHOWN)
    return panel(sf.load(run).sample(len(labels), labels=labels, seed=0).images)


def panel(pixels: np.ndarray) -> Image.Image:
    """A column for each class, of images that come class by class."""
    shown = np.asarray(grid(pixels, columns=SHOWN).convert("L"))[: CLASSES * CELL, : SHOWN * CELL]
    cells = shown.reshape(CLASSES, CELL, SHOWN, CELL)
    return Image.fromarray(cells.transpose(2, 1, 0, 3).reshape(SHOWN * CELL, CLASSES * CELL))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
