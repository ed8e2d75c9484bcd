"""Collections with one bad record among good ones, and the rule that it breaks."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.samples import encoded, pictures, table, write_folder, write_npz

SECRET = "patient-4711"


def class_folders(place: Path) -> Path:
    images, labels = pictures()
    return write_folder(place, images, labels)


def with_a_bad_file(place: Path, content: bytes) -> Path:
    class_folders(place)
    (place / "cat" / f"{SECRET}.png").write_bytes(content)
    return place


def truncated_file(place: Path) -> Path:
    return with_a_bad_file(place, encoded(pictures()[0][0])[:-30])


def not_an_image(place: Path) -> Path:
    return with_a_bad_file(place, b"a shopping list")


def empty_file(place: Path) -> Path:
    return with_a_bad_file(place, b"")


def absurd_pixel_count(place: Path) -> Path:
    """A valid header that claims 60,000 × 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    chunks = b"".join(struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    return with_a_bad_file(place, b"\x89PNG\r\n\x1a\n" + chunks)


def link_to_a_file_outside(place: Path) -> Path:
    outside = place.parent / "outside.png"
    outside.write_bytes(encoded(pictures()[0][0]))
    class_folders(place)
    (place / "cat" / f"{SECRET}.png").symlink_to(outside)
    return place


def link_that_circles(place: Path) -> Path:
    class_folders(place)
    (place / "cat" / f"{SECRET}.png").symlink_to(place / "cat" / f"{SECRET}.png")
    return place


def pipe(place: Path) -> Path:
    class_folders(place)
    os.mkfifo(place / "cat" / f"{SECRET}.png")
    return place


def folder_in_a_class_folder(place: Path) -> Path:
    class_folders(place)
    (place / "cat" / SECRET).mkdir()
    return place


def nan_in_one_image(place: Path) -> Path:
    images = pictures()[0] / 255
    images[3, 0, 0, 0] = np.nan
    return write_npz(place.with_suffix(".npz"), images, pictures()[1])


def label_out_of_range(place: Path) -> Path:
    images, labels = pictures()
    labels[4] = 4711
    return write_npz(place.with_suffix(".npz"), images, labels)


def null_image(place: Path) -> Path:
    rows = table(*pictures()).to_pylist()
    rows[2]["image"] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=table(*pictures()).schema), place)
    return place


def picture_by_path_only(place: Path) -> Path:
    rows = table(*pictures()).to_pylist()
    rows[2]["image"] = {"bytes": None, "path": f"/home/{SECRET}.png"}
    pq.write_table(pa.Table.from_pylist(rows, schema=table(*pictures()).schema), place)
    return place


# One bad record among twelve good ones: an error, or set aside when that was asked for.
RECORDS: dict[Callable[[Path], Path], str] = {
    truncated_file: "cannot be decoded",
    not_an_image: "cannot be decoded",
    empty_file: "cannot be decoded",
    absurd_pixel_count: "more than 64,000,000 pixels",
    link_to_a_file_outside: "leads out of the folder",
    link_that_circles: "could not read",
    pipe: "not a file",
    folder_in_a_class_folder: "not a file",
    nan_in_one_image: "finite numbers from 0 to 1",
    label_out_of_range: "not in the declared label set",
    null_image: "missing from the image column",
    picture_by_path_only: "missing from the image column",
}
