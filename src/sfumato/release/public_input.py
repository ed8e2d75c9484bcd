"""Reading a collection that a method treats as public, with what its card must say about it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from sfumato.data.images import Images, PublicImages
from sfumato.privacy.accounting import epsilon, filtered_epsilon
from sfumato.privacy.events import RawAccess
from sfumato.privacy.interfaces import PublicInput
from sfumato.release.card import CERTIFIED, Card
from sfumato.release.export import DESCRIPTION, described_guarantee, is_export

_OTHER_ACCOUNTANT = 1e-3  # between versions of the accountant
_ROUNDED = 0.02


def read_public(
    path: str | Path, *, size: tuple[int, int], colour: Literal["grey", "rgb"]
) -> tuple[PublicImages, PublicInput]:
    """Read a public collection, and what the ledger writes down about it.

    Synthetic images without a guarantee may hold private records, and are refused; those with one carry what their
    release has spent. A card from elsewhere is read only if its ε follows from its events; that its events are all
    there were is then the custodian's statement, and the new card says so.

    Whether a collection shares records with the private one is not looked for: the refusal would say who is in the
    private collection. That it does not is the custodian's statement.

    Args:
        path: A collection of any format, or a folder that ``export`` wrote.
        size: Height and width to resize to.
        colour: Whether to read grey or colour images.
    """
    path = Path(path)
    card = _card_beside(path)
    place = path
    if card is not None and is_export(path):
        place = next(path / name for name in ("images", "images.npz", "images.parquet") if (path / name).exists())
    if card is None and (mark := _mark(path)) is not None:
        if mark == CERTIFIED:
            raise ValueError(
                f"{path} holds synthetic images without their card.json, so that what they have cost cannot be "
                "counted; use the folder that 'sfumato sample' wrote"
            )
        _refuse(path)
    if card is not None and not card.certified:
        _refuse(path)
    if card is not None and not follows(card):
        raise ValueError(
            f"the card in {path} states ε {card.epsilon:g}, which does not follow from the events on it. It was "
            "changed, or made by another program; what the images have cost cannot be counted"
        )
    images = PublicImages.read(place, size=size, colour=colour)
    digest = content_sha256(images)
    if card is None:
        return images, PublicInput(path.resolve().name, digest, place=place)
    events = tuple(event for event in card.accounted if not isinstance(event, RawAccess))
    return images, PublicInput(path.resolve().name, digest, card.run, events, card.unit, place=place)


def follows(card: Card) -> bool:
    """Whether the ε of a certified card is what its events cost, rounded up."""
    if card.epsilon is None or card.delta is None or not card.accounted:
        return False
    rule = card.composition or {}
    if rule.get("rule") == "renyi filter":
        cost = filtered_epsilon(card.accounted, int(rule["order"]), card.delta)
    else:
        cost = epsilon(card.accounted, card.delta)
    return cost * (1 - _OTHER_ACCOUNTANT) <= card.epsilon <= cost * (1 + _ROUNDED)


def content_sha256(images: Images) -> str:
    """The hash of pixels and labels, with their shapes."""
    found = hashlib.sha256()
    for array in (images.pixels, images.labels):
        found.update(f"{array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _refuse(path: Path) -> None:
    raise ValueError(
        f"{path} holds synthetic images without a guarantee: they may show private records, and a release that learns "
        "from them as public images could not be certified. Use images of a certified release, or a public collection"
    )


def _card_beside(path: Path) -> Card | None:
    """The card of an export: in the folder, or beside the images that were named themselves."""
    for folder in (path, path.parent):
        if (folder / "card.json").is_file() and is_export(folder):
            return Card.read(folder)
    return None


def _mark(path: Path) -> str | None:
    """The guarantee that a file of an export carries in itself, wherever it was copied to; the weakest of several."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    marks = {mark for file in files if (mark := _mark_of(file)) is not None}
    return None if not marks else next((mark for mark in sorted(marks) if mark != CERTIFIED), CERTIFIED)


def _mark_of(file: Path) -> str | None:
    if file.suffix == ".png":
        with Image.open(file) as image:
            mark = image.info.get("guarantee") or described_guarantee(str(image.getexif().get(DESCRIPTION, "")))
    elif file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            mark = str(arrays["guarantee"]) if "guarantee" in arrays else None
    elif file.suffix == ".parquet":
        mark = (pq.read_schema(file).metadata or {}).get(b"guarantee", b"").decode() or None
    elif file.suffix.lower() in (".jpg", ".jpeg", ".webp", ".tif", ".tiff"):
        with Image.open(file) as image:
            mark = described_guarantee(str(image.getexif().get(DESCRIPTION, "")))
    else:
        mark = None
    return None if mark is None else str(mark)
