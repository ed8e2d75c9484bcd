"""Real images beside synthetic ones, class by class. INTERNAL: it shows private images and may not leave."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sfumato.data.images import Images
from sfumato.files import new_file, private_folder
from sfumato.release.image_grid import grid
from sfumato.release.synthetic import SyntheticImages

REAL, SYNTHETIC = "real.png", "synthetic.png"
CLASSES_AT_MOST = 20
_EACH = 5


def write_side_by_side(folder: Path, synthetic: Images | SyntheticImages, real: Images) -> None:
    """Two pictures, each with a row of some images for every one of the first classes; the owner alone may read them.

    A class with fewer images has white places. Classes are matched by name.
    """
    drawn = synthetic.images if isinstance(synthetic, SyntheticImages) else synthetic.pixels
    private_folder(folder)
    for name, pixels, labels, classes in (
        (REAL, real.pixels, real.labels, real.classes),
        (SYNTHETIC, drawn, synthetic.labels, synthetic.classes),
    ):
        rows = [_some(pixels, labels, classes, wanted) for wanted in synthetic.classes[:CLASSES_AT_MOST]]
        picture = grid(np.concatenate(rows), columns=_EACH, scale=max(1, 56 // pixels.shape[-1]))
        with new_file(folder / name, private=True) as temporary:
            picture.save(temporary, format="PNG", optimize=True)


def _some(pixels: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], wanted: str) -> np.ndarray:
    places = np.flatnonzero(labels == classes.index(wanted))[:_EACH] if wanted in classes else np.zeros(0, dtype=int)
    shown = np.full((_EACH, *pixels.shape[1:]), 255, dtype=np.uint8)
    shown[: len(places)] = pixels[places]
    return shown
