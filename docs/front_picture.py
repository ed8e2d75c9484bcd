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
from sfumato.release.image_grid import grid

IMAGES = Path(__file__).parent / "images"
COLUMNS = 5
SCALE = 2
CELL, BLOCK, HEADER, GAP = 30, 314, 84, 16
TITLES = ("real", "synthetic, ε = 1", "synthetic, ε = 10")
DATASETS = (("mnist", "MNIST", 0), ("fashion-mnist", "Fashion-MNIST", 2))


def main(data: Path) -> None:
    """Write the picture."""
    samples = Image.open(IMAGES / "dp2-vae.png").convert("L")
    width, height = COLUMNS * CELL * SCALE, 10 * CELL * SCALE
    picture = Image.new("L", (6 * width + 5 * GAP + 2 * GAP, height + HEADER), 255)
    draw, x = ImageDraw.Draw(picture), 0
    for name, title, block in DATASETS:
        panels = [real_images(data / name)]
        panels += [samples.crop((n * BLOCK, 0, n * BLOCK + COLUMNS * CELL, 10 * CELL)) for n in (block, block + 1)]
        draw.text((x, 2), title, font=font(34), fill=0)
        for panel, text in zip(panels, TITLES, strict=True):
            draw.text((x, 46), text, font=font(28), fill=60)
            picture.paste(panel.resize((width, height), Image.Resampling.NEAREST), (x, HEADER))
            x += width + GAP
        x += 2 * GAP
    picture.quantize(32).save(IMAGES / "front.png", optimize=True)


def font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which has ε and comes with matplotlib."""
    return ImageFont.truetype(Path(get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)


def real_images(folder: Path) -> Image.Image:
    """The first five images of each class of the test split."""
    images = read(folder, split="test", classes=10)
    labels = np.asarray(images.labels)
    rows = np.concatenate([np.flatnonzero(labels == label)[:COLUMNS] for label in range(10)])
    shown = grid(np.asarray(images.pixels)[rows], columns=COLUMNS).convert("L")
    return shown.crop((0, 0, COLUMNS * CELL, 10 * CELL))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
