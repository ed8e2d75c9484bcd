"""Small collections in every format, made on the spot."""

from __future__ import annotations

import gzip
import io
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = ("cat", "dog", "newt")
HUGGING_FACE = {
    "info": {"features": {"image": {"_type": "Image"}, "label": {"names": list(CLASSES), "_type": "ClassLabel"}}}
}


def pictures(count: int = 12, *, side: int = 8, channels: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random images ``[N, C, H, W]`` and labels 0..2."""
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, channels, side, side), dtype=np.uint8)
    return images, random.integers(0, len(CLASSES), count)


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    picture = Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, -1))
    buffer = io.BytesIO()
    picture.save(buffer, format=kind)
    return buffer.getvalue()


def write_folder(place: Path, images: np.ndarray, labels: np.ndarray, *, kind: str = "PNG") -> Path:
    for name in CLASSES:
        (place / name).mkdir(parents=True)
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        (place / CLASSES[label] / f"{row:04d}.{kind.lower()}").write_bytes(encoded(image, kind))
    return place


def write_npz(place: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    np.savez_compressed(place, images=images, labels=labels, classes=np.array(CLASSES))
    return place


def write_idx(
    place: Path, images: np.ndarray, labels: np.ndarray, *, split: str = "train", packed: bool = True
) -> Path:
    place.mkdir(exist_ok=True)
    count, _, height, width = images.shape
    contents = {
        "images-idx3-ubyte": struct.pack(">4I", 0x803, count, height, width) + images[:, 0].tobytes(),
        "labels-idx1-ubyte": struct.pack(">2I", 0x801, count) + labels.astype(np.uint8).tobytes(),
    }
    for name, content in contents.items():
        file = place / f"{split}-{name}{'.gz' if packed else ''}"
        file.write_bytes(gzip.compress(content) if packed else content)
    return place


def table(images: np.ndarray, labels: np.ndarray) -> pa.Table:
    """Hugging Face form, with a person column; persons own three images each."""
    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            ("label", pa.int64()),
            ("person", pa.string()),
        ],
        metadata={"huggingface": json.dumps(HUGGING_FACE)},
    )
    rows = [{"bytes": encoded(image), "path": f"{row}.png"} for row, image in enumerate(images)]
    persons = [f"person {row // 3}" for row in range(len(images))]
    return pa.table({"image": rows, "label": labels, "person": persons}, schema=schema)


def write_parquet(place: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    pq.write_table(table(images, labels), place, row_group_size=5)
    return place


def write_arrow(place: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    """The layout of ``Dataset.save_to_disk``: Arrow streams, state.json and dataset_info.json."""
    place.mkdir(parents=True)
    whole, names = table(images, labels), ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    half = len(images) // 2
    for name, part in zip(names, (whole.slice(0, half), whole.slice(half)), strict=True):
        with pa.OSFile(str(place / name), "wb") as file, pa.ipc.new_stream(file, whole.schema) as stream:
            stream.write_table(part)
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (place / "dataset_info.json").write_text(json.dumps(HUGGING_FACE["info"]))
    return place
