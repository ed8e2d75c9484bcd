"""Collections that break a rule as a whole, and the rule."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.bad_records import SECRET, class_folders
from data.samples import pictures, table, write_arrow, write_idx, write_npz


def no_such_place(place: Path) -> Path:
    return place


def empty_folder(place: Path) -> Path:
    place.mkdir()
    return place


def classes_without_images(place: Path) -> Path:
    (place / "cat").mkdir(parents=True)
    return place


def files_beside_the_classes(place: Path) -> Path:
    class_folders(place)
    (place / f"{SECRET}.png").write_bytes(b"")
    return place


def _named(name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        class_folders(place)
        (place / name).mkdir()
        return place

    return make


def link_to_a_folder_outside(place: Path) -> Path:
    (place.parent / SECRET).mkdir()
    class_folders(place)
    (place / "yak").symlink_to(place.parent / SECRET)
    return place


def objects_in_npz(place: Path) -> Path:
    np.savez(place.with_suffix(".npz"), images=np.array([{"a": 1}, SECRET], dtype=object), labels=np.zeros(2, int))
    return place.with_suffix(".npz")


def npz_without_labels(place: Path) -> Path:
    np.savez(place.with_suffix(".npz"), images=pictures()[0])
    return place.with_suffix(".npz")


def npz_counts_differ(place: Path) -> Path:
    return write_npz(place.with_suffix(".npz"), pictures()[0], pictures()[1][:-1])


def npz_with_float_labels(place: Path) -> Path:
    return write_npz(place.with_suffix(".npz"), pictures()[0], pictures()[1] / 2)


def npz_column_by_column(place: Path) -> Path:
    return write_npz(place.with_suffix(".npz"), np.asfortranarray(pictures()[0]), pictures()[1])


def npz_cut_short(place: Path) -> Path:
    whole = write_npz(place.with_suffix(".npz"), *pictures())
    whole.write_bytes(whole.read_bytes()[:-40])
    return whole


def _npz_header(place: Path, shape: tuple[int, ...]) -> Path:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(place, "w") as archive:
        for name in ("images", "labels"):
            archive.writestr(f"{name}.npy", header.getvalue() + b"\0" * 64)
    return place


def npz_header_that_lies(place: Path) -> Path:
    """A trillion images in a few bytes."""
    return _npz_header(place, (10**12, 8, 8))


def npz_absurd_image_size(place: Path) -> Path:
    return _npz_header(place, (1, 60_000, 60_000))


def _idx(place: Path, change: Callable[[bytes], bytes], which: str = "images-idx3") -> Path:
    write_idx(place, *pictures(channels=1))
    file = place / f"train-{which}-ubyte.gz"
    file.write_bytes(gzip.compress(change(gzip.decompress(file.read_bytes()))))
    return place


def idx_wrong_magic(place: Path) -> Path:
    return _idx(place, lambda b: b"\0\0\x0d\x03" + b[4:])


def idx_too_short(place: Path) -> Path:
    return _idx(place, lambda b: b[:-1])


def idx_too_long(place: Path) -> Path:
    return _idx(place, lambda b: b + b"\0")


def idx_labels_too_long(place: Path) -> Path:
    return _idx(place, lambda b: b + b"\0", "labels-idx1")


def idx_absurd_size(place: Path) -> Path:
    return _idx(place, lambda b: b[:8] + struct.pack(">2I", 2**31, 2**31) + b[16:])


def idx_counts_differ(place: Path) -> Path:
    return _idx(place, lambda b: struct.pack(">2I", 0x801, 11) + b[8:-1], "labels-idx1")


def idx_without_labels(place: Path) -> Path:
    write_idx(place, *pictures(channels=1))
    (place / "train-labels-idx1-ubyte.gz").unlink()
    return place


def idx_gzip_cut_short(place: Path) -> Path:
    file = write_idx(place, *pictures(channels=1)) / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    return place


def parquet_without_label(place: Path) -> Path:
    pq.write_table(table(*pictures()).drop_columns(["label"]), place)
    return place


def parquet_of_numbers(place: Path) -> Path:
    pq.write_table(pa.table({"image": [1, 2], "label": [0, 1]}), place)
    return place


def parquet_with_float_labels(place: Path) -> Path:
    whole = table(*pictures())
    pq.write_table(whole.set_column(1, "label", pa.array([0.5] * 12)), place)
    return place


def parquet_cut_short(place: Path) -> Path:
    pq.write_table(table(*pictures()), place)
    place.write_bytes(place.read_bytes()[:-100])
    return place


def arrow_file_outside(place: Path) -> Path:
    write_arrow(place, *pictures())
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": f"../{SECRET}.arrow"}]}))
    return place


def arrow_without_files(place: Path) -> Path:
    write_arrow(place, *pictures())
    (place / "state.json").write_text(json.dumps({"_data_files": []}))
    return place


def text_file(place: Path) -> Path:
    place.write_text(SECRET)
    return place


# The collection as a whole breaks a rule: always an error, also with skip_bad.
COLLECTIONS: list[tuple[str, Callable[[Path], Path], str]] = [
    (make.__name__, make, rule)
    for make, rule in (
        (no_such_place, "there is nothing at"),
        (empty_folder, "no class folders"),
        (classes_without_images, "no images"),
        (files_beside_the_classes, "beside the class folders"),
        (link_to_a_folder_outside, "leads out of the folder"),
        (objects_in_npz, "holds objects"),
        (npz_without_labels, "no array called 'labels'"),
        (npz_counts_differ, "differ in number"),
        (npz_with_float_labels, "one whole number or string"),
        (npz_column_by_column, "column by column"),
        (npz_cut_short, "npz file is damaged"),
        (npz_header_that_lies, "not as long as its header says"),
        (npz_absurd_image_size, "claims more than"),
        (idx_wrong_magic, "must start with the bytes 00 00 08 03"),
        (idx_too_short, "shorter than its header"),
        (idx_too_long, "longer than its header"),
        (idx_labels_too_long, "longer than its header"),
        (idx_absurd_size, "impossible image size"),
        (idx_counts_differ, "differ in number"),
        (idx_without_labels, "no labels file"),
        (idx_gzip_cut_short, "damaged or cut short"),
        (parquet_without_label, "no single column 'label'"),
        (parquet_of_numbers, "must hold encoded images"),
        (parquet_with_float_labels, "whole numbers or strings"),
        (parquet_cut_short, "table file is damaged"),
        (arrow_file_outside, "lies outside its folder"),
        (arrow_without_files, "no table files"),
        (text_file, "not a collection in a known format"),
    )
] + [
    (f"folder named {name!r}", _named(name), "name that no class folder can have")
    for name in ("line\nbreak", " blank", "right\u202eleft", "bell\a")
]
