"""Make docs/images/front.png: real images beside certified synthetic ones of DP²-VAE at ε 1 and 10.

    python docs/front_picture.py DATA

``DATA`` is the folder with ``mnist`` and ``fashion-mnist``. The synthetic images are those of docs/images/dp2-vae.png;
the trainings are described on docs/reference/methods/dp2-vae.md. MNIST and Fashion-MNIST are public.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

from sfumato.data import read
from sfumato.release.pages import grid

IMAGES = Path(__file__).parent / "images"
CLASSES, SHOWN, SCALE = 10, 3, 2
CELL, BLOCK = 30, 314  # pixels of a cell and of a block of cells in dp2-vae.png
GAP, LABEL, TITLE = 24, 40, 46
TITLES = ("real", "synthetic, ε = 1", "synthetic, ε = 10")
DATASETS = (("mnist", "MNIST", 0), ("fashion-mnist", "Fashion-MNIST", 2))


def main(data: Path) -> None:
    """Write the picture: a column for each dataset, a row of panels for real images and for each ε."""
    samples = np.asarray(Image.open(IMAGES / "dp2-vae.png").convert("L"))
    width, height = CLASSES * CELL * SCALE, SHOWN * CELL * SCALE
    size = (len(DATASETS) * (width + GAP) - GAP, TITLE + len(TITLES) * (height + LABEL))
    picture = Image.new("L", size, 255)
    draw = ImageDraw.Draw(picture)
    for column, (name, title, block) in enumerate(DATASETS):
        x = column * (width + GAP)
        draw.text((x, 2), title, font=font(32), fill=0)
        panels = [real_images(data / name)]
        panels += [turned(samples[: CLASSES * CELL, n * BLOCK : n * BLOCK + SHOWN * CELL]) for n in (block, block + 1)]
        for row, (panel, text) in enumerate(zip(panels, TITLES, strict=True)):
            y = TITLE + row * (height + LABEL)
            draw.text((x, y + 4), text, font=font(24), fill=60)
            picture.paste(panel.resize((width, height), Image.Resampling.NEAREST), (x, y + LABEL))
    picture.quantize(32).save(IMAGES / "front.png", optimize=True)


def turned(rows: np.ndarray) -> Image.Image:
    """A grid with a row for each class, as one with a column for each class."""
    cells = rows.reshape(CLASSES, CELL, SHOWN, CELL)
    return Image.fromarray(cells.transpose(2, 1, 0, 3).reshape(SHOWN * CELL, CLASSES * CELL))


def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which has ε and comes with matplotlib."""
    return ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)


def real_images(folder: Path) -> Image.Image:
    """The first images of each class of the test split."""
    images = read(folder, split="test", classes=CLASSES)
    labels = np.asarray(images.labels)
    rows = np.concatenate([np.flatnonzero(labels == label)[:SHOWN] for label in range(CLASSES)])
    shown = grid(np.asarray(images.pixels)[rows], columns=SHOWN).convert("L")
    return turned(np.asarray(shown)[: CLASSES * CELL, : SHOWN * CELL])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
