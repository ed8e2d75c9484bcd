"""Private images beside synthetic ones: nearest neighbours, and class by class. INTERNAL: it may not leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sfumato.data.images import Images
from sfumato.evaluation.results import MemorisationSummary
from sfumato.files import new_file, private_folder
from sfumato.release.pages import grid
from sfumato.release.synthetic import SyntheticImages

NOTICE = "INTERNAL: shows private images; may not leave"


@dataclass(frozen=True)
class Neighbours:
    """For each synthetic image its nearest training image (row number) and the distance; for each test image, likewise.

    Distances are root mean squares over pixels on the scale 0..1.
    """

    nearest: np.ndarray
    distance: np.ndarray
    test_distance: np.ndarray

    def summary(self) -> MemorisationSummary:
        """The share of synthetic images that are nearer to a training image than 99 % of fresh real images are."""
        threshold = float(np.quantile(self.test_distance, 0.01))
        return MemorisationSummary(
            notice=NOTICE,
            synthetic_count=len(self.distance),
            test_count=len(self.test_distance),
            exact_copies=int((self.distance == 0).sum()),
            share_nearer_than_one_percent_of_test=float((self.distance < threshold).mean()),
            median_distance=float(np.median(self.distance)),
            median_distance_of_test=float(np.median(self.test_distance)),
        )


def nearest_neighbours(
    synthetic: np.ndarray, real_train: np.ndarray, real_test: np.ndarray, *, device: str | torch.device = "cpu"
) -> Neighbours:
    """All three as uint8 ``[N, C, H, W]`` of one image shape."""
    if not synthetic.shape[1:] == real_train.shape[1:] == real_test.shape[1:]:
        raise ValueError("synthetic and real images must have the same channels, height and width")
    device = torch.device(device)
    nearest, distance = _search(_flat(synthetic, device), real_train)
    _, test_distance = _search(_flat(real_test, device), real_train)
    return Neighbours(nearest, distance, test_distance)


def _flat(pixels: np.ndarray, device: torch.device) -> Tensor:
    return torch.tensor(np.asarray(pixels).reshape(len(pixels), -1), device=device).float()


def _search(images: Tensor, train: np.ndarray, chunk: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """Nearest training image of each image, in chunks, so that a memory map larger than the memory can be searched."""
    best = torch.full((len(images),), torch.inf, device=images.device)
    rows = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    exact = torch.zeros_like(best)
    for start in range(0, len(train), chunk):
        part = _flat(train[start : start + chunk], images.device)
        # |x − t|² less the |x|² that all candidates share.
        nearest, places = (part.square().sum(dim=1) - 2 * images @ part.T).min(dim=1)
        better = nearest < best
        # Taken from the difference itself, so that a copy has distance zero and not a rounding.
        difference = (images[better] - part[places[better]]).square().mean(dim=1)
        best[better], rows[better], exact[better] = nearest[better], places[better] + start, difference
    return rows.cpu().numpy(), (exact.sqrt() / 255.0).cpu().numpy()


def write_view(
    path: Path, neighbours: Neighbours, *, synthetic: np.ndarray, real_train: np.ndarray, pairs: int = 40
) -> None:
    """The nearest pairs as a picture, synthetic above its training neighbour; readable by the owner alone."""
    from PIL import Image

    order = np.argsort(neighbours.distance, kind="stable")[:pairs]
    columns = min(20, len(order))
    cells = [np.concatenate([synthetic[row], real_train[neighbours.nearest[row]]], axis=1) for row in order]
    blank = np.full_like(cells[0], 255)
    cells += [blank] * (-len(cells) % columns)
    bands = [np.concatenate(cells[start : start + columns], axis=2) for start in range(0, len(cells), columns)]
    picture = np.moveaxis(np.concatenate(bands, axis=1), 0, -1)
    with new_file(path, private=True) as temporary:
        Image.fromarray(picture.squeeze(-1) if picture.shape[-1] == 1 else picture).save(temporary, format="PNG")


REAL, SYNTHETIC = "real.png", "synthetic.png"
CLASSES_AT_MOST = 20
IMAGES_OF_A_CLASS = 5


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
        picture = grid(np.concatenate(rows), columns=IMAGES_OF_A_CLASS, scale=max(1, 56 // pixels.shape[-1]))
        with new_file(folder / name, private=True) as temporary:
            picture.save(temporary, format="PNG", optimize=True)


def _some(pixels: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], wanted: str) -> np.ndarray:
    places = (
        np.flatnonzero(labels == classes.index(wanted))[:IMAGES_OF_A_CLASS]
        if wanted in classes
        else np.zeros(0, dtype=int)
    )
    shown = np.full((IMAGES_OF_A_CLASS, *pixels.shape[1:]), 255, dtype=np.uint8)
    shown[: len(places)] = pixels[places]
    return shown
