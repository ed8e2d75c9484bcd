"""Synthetic images as files that other tools read, never without what is promised about them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from sfumato.data.formats.folder import check_name
from sfumato.files import new_folder, write_json

ExportFormat = Literal["folder", "npz", "parquet"]

NO_CARD = {
    "guarantee": "no guarantee",
    "epsilon": None,
    "delta": None,
    "unit": None,
    "sentence": "NO GUARANTEE. Nothing is known about how these images were made. Treat them as private.",
}
_NEEDED = ("guarantee", "epsilon", "delta", "unit", "sentence")
_ROWS = 1000


def export(
    images: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    path: str | Path,
    *,
    format: ExportFormat = "folder",
    card: Mapping[str, Any] | None,
    allow_no_guarantee: bool = False,
) -> Path:
    """Writes a folder ``path`` with the images and ``card.json`` beside them; all of it or nothing.

    "folder": ``images/<class>/000000.png``. "npz": ``images.npz`` with images, labels, classes. "parquet":
    ``images.parquet`` in Hugging Face form. The guarantee's sentence is in the metadata of every file. Images whose
    card says "no guarantee", or that have no card, are written with ``allow_no_guarantee`` only.
    """
    names, path = tuple(classes), Path(path)
    _check_images(images, labels, names)
    card = dict(NO_CARD if card is None else card)
    _check_card(card, allowed=allow_no_guarantee)
    if format not in _WRITERS:
        raise ValueError(f"format must be one of {', '.join(_WRITERS)}, not {format!r}")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} is not empty; an export is never written over something else")
    with new_folder(path) as temporary:
        _WRITERS[format](temporary, images, np.asarray(labels, np.int64), names, card)
        write_json(temporary / "card.json", card, private=False)
    return path


def _check_images(images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...]) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"images must be uint8 [N, 1 or 3, H, W], not {images.dtype} {images.shape}")
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError("labels must be one whole number for each image")
    if len(set(classes)) != len(classes):
        raise ValueError("the classes must have different names")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(classes):
        raise ValueError(f"labels must be numbers 0 to {len(classes) - 1}, one for each class")


def _check_card(card: dict[str, Any], *, allowed: bool) -> None:
    missing = [key for key in _NEEDED if key not in card]
    if missing:
        raise ValueError(f"the card lacks {', '.join(missing)}; use the card of the release")
    if card["guarantee"] not in ("certified", "no guarantee"):
        raise ValueError(f'a guarantee is "certified" or "no guarantee", not {card["guarantee"]!r}')
    if not isinstance(card["sentence"], str) or not card["sentence"].strip():
        raise ValueError("the card must say in a sentence what it promises")
    if card["guarantee"] == "certified":
        numbers = [card["epsilon"], card["delta"]]
        if not all(isinstance(number, (int, float)) and math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError("a certified card must give a finite epsilon and delta")
    elif not allowed:
        raise ValueError(
            "these images come without a privacy guarantee; to export them all the same say "
            "allow_no_guarantee=True (--allow-no-guarantee), and the files will carry the warning"
        )


def _png(image: np.ndarray, info: PngInfo) -> bytes:
    picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(np.moveaxis(image, 0, -1)))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()


def _promise(card: dict[str, Any]) -> PngInfo:
    """Text chunks of a PNG. International text, for a sentence may hold any letter."""
    info = PngInfo()
    info.add_itxt("guarantee", card["guarantee"])
    info.add_itxt("sentence", card["sentence"])
    return info


def _write_folder(
    folder: Path, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], card: dict[str, Any]
) -> None:
    info = _promise(card)
    for number, name in enumerate(classes):
        check_name(name)
        place = folder / "images" / name
        place.mkdir(parents=True)
        for row in np.flatnonzero(labels == number):
            (place / f"{row:06d}.png").write_bytes(_png(images[row], info))


def _write_npz(
    folder: Path, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], card: dict[str, Any]
) -> None:
    np.savez_compressed(
        folder / "images.npz",
        images=images[:, 0] if images.shape[1] == 1 else np.ascontiguousarray(np.moveaxis(images, 1, -1)),
        labels=labels,
        classes=np.array(classes, dtype=np.str_),
        guarantee=np.array(card["guarantee"]),
        sentence=np.array(card["sentence"]),
    )


def _write_parquet(
    folder: Path, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], card: dict[str, Any]
) -> None:
    features = {"image": {"_type": "Image"}, "label": {"names": list(classes), "_type": "ClassLabel"}}
    schema = pa.schema(
        [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())],
        metadata={
            "huggingface": json.dumps({"info": {"features": features}}),
            "guarantee": card["guarantee"],
            "sentence": card["sentence"],
        },
    )
    info = _promise(card)
    with pq.ParquetWriter(folder / "images.parquet", schema) as writer:
        for start in range(0, len(images), _ROWS):
            part = range(start, min(start + _ROWS, len(images)))
            pictures = [{"bytes": _png(images[row], info), "path": f"{row:06d}.png"} for row in part]
            rows = {"image": pictures, "label": labels[part.start : part.stop]}
            writer.write_table(pa.table(rows, schema=schema))


_WRITERS: dict[str, Callable[[Path, np.ndarray, np.ndarray, tuple[str, ...], dict[str, Any]], None]] = {
    "folder": _write_folder,
    "npz": _write_npz,
    "parquet": _write_parquet,
}
