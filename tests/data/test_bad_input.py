"""Each rule that input can break: one clear error, nothing private in it, nothing left behind."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import textwrap
import traceback
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, UnidentifiedImageError

from data.samples import CLASSES, encoded, pictures, table, write_arrow, write_folder, write_idx, write_npz
from sfumato.data import BadInput, read

SECRET = "patient-4711"


def _folder(place: Path) -> Path:
    images, labels = pictures()
    return write_folder(place, images, labels)


def _bad_file(place: Path, content: bytes) -> Path:
    _folder(place)
    (place / "cat" / f"{SECRET}.png").write_bytes(content)
    return place


def truncated_file(place: Path) -> Path:
    return _bad_file(place, encoded(pictures()[0][0])[:-30])


def not_an_image(place: Path) -> Path:
    return _bad_file(place, b"a shopping list")


def empty_file(place: Path) -> Path:
    return _bad_file(place, b"")


def absurd_pixel_count(place: Path) -> Path:
    """A valid header that claims 60,000 × 60,000 pixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    chunks = b"".join(struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in parts)
    return _bad_file(place, b"\x89PNG\r\n\x1a\n" + chunks)


def link_to_a_file_outside(place: Path) -> Path:
    outside = place.parent / "outside.png"
    outside.write_bytes(encoded(pictures()[0][0]))
    _folder(place)
    (place / "cat" / f"{SECRET}.png").symlink_to(outside)
    return place


def link_that_circles(place: Path) -> Path:
    _folder(place)
    (place / "cat" / f"{SECRET}.png").symlink_to(place / "cat" / f"{SECRET}.png")
    return place


def pipe(place: Path) -> Path:
    _folder(place)
    os.mkfifo(place / "cat" / f"{SECRET}.png")
    return place


def folder_in_a_class_folder(place: Path) -> Path:
    _folder(place)
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


@pytest.mark.parametrize("make", RECORDS, ids=lambda make: make.__name__)
def test_bad_record(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    place, cache = make(tmp_path / "c"), tmp_path / "cache"
    with pytest.raises(BadInput, match=RECORDS[make]) as caught:
        read(place, cache=cache)
    told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert SECRET not in told and "4711" not in told and "row" not in vars(caught.value)["detail"]
    assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert not cache.exists()
    with pytest.raises(BadInput, match=f"{SECRET}|row|only|c") as caught:
        read(place, cache=cache, internal=True)
    assert caught.value.detail
    found = read(place, skip_bad=True)
    assert len(found.pixels) in (11, 12) and found.skipped == ()
    aside = read(place, skip_bad=True, internal=True).skipped
    assert len(aside) == 1 and (SECRET in aside[0] or aside[0].startswith("row "))


def no_such_place(place: Path) -> Path:
    return place


def empty_folder(place: Path) -> Path:
    place.mkdir()
    return place


def classes_without_images(place: Path) -> Path:
    (place / "cat").mkdir(parents=True)
    return place


def files_beside_the_classes(place: Path) -> Path:
    _folder(place)
    (place / f"{SECRET}.png").write_bytes(b"")
    return place


def _named(name: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        _folder(place)
        (place / name).mkdir()
        return place

    return make


def link_to_a_folder_outside(place: Path) -> Path:
    (place.parent / SECRET).mkdir()
    _folder(place)
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


@pytest.mark.parametrize(("make", "rule"), [case[1:] for case in COLLECTIONS], ids=[case[0] for case in COLLECTIONS])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_bad_collection(tmp_path: Path, make: Callable[[Path], Path], rule: str, skip_bad: bool) -> None:
    place, cache = make(tmp_path / "c"), tmp_path / "cache"
    classes = 3 if make.__name__.startswith("idx") else None
    with pytest.raises(BadInput, match=rule) as caught:
        read(place, classes=classes, cache=cache, skip_bad=skip_bad)
    told = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))
    assert SECRET not in told and not caught.value.detail
    assert caught.value.advice
    assert not cache.exists()


def test_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    place = _folder(tmp_path / "c")
    target = next((place / "dog").iterdir())
    (place / "cat" / "again.png").symlink_to(target)
    assert len(read(place).pixels) == 13


def test_undeclared_class_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not in the declared label set"):
        read(_folder(tmp_path / "c"), classes=CLASSES[:2], skip_bad=True)


def test_hidden_and_desktop_files_are_ignored(tmp_path: Path) -> None:
    place = _folder(tmp_path / "c")
    (place / ".thumbnails").mkdir()
    for name in (".DS_Store", "Thumbs.db", "._0001.png"):
        (place / name).write_bytes(b"x")
        (place / "cat" / name).write_bytes(b"x")
    assert len(read(place).pixels) == 12


def test_truncated_jpeg(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, format="JPEG")
    (tmp_path / "c" / "cat").mkdir(parents=True)
    (tmp_path / "c" / "cat" / "1.jpg").write_bytes(buffer.getvalue()[:-200])
    with pytest.raises(BadInput, match="cannot be decoded"):
        read(tmp_path / "c")


def _run(program: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, check=True
    )
    return result.stdout


def test_no_read_permission(tmp_path: Path) -> None:
    """In a process of its own that is nobody: the superuser may read anything."""
    place = _folder(tmp_path / "c")
    bad = place / "cat" / f"{SECRET}.png"
    bad.write_bytes(encoded(pictures()[0][0]))
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith(("pytest", "test", "popen")):
            folder.chmod(0o755)
    bad.chmod(0)
    program = """
        import os, sys
        from sfumato.data import BadInput, read
        import PIL.PngImagePlugin
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            read(sys.argv[1])
        except BadInput as error:
            print(error.rule, "|", error)
        print(len(read(sys.argv[1], skip_bad=True).pixels))
    """
    told = _run(program, str(place))
    assert "may not be read by this user" in told and SECRET not in told
    assert told.splitlines()[-1] == "12"


def test_disk_that_fills_up(tmp_path: Path) -> None:
    """A limit on file size stands for the full disk: the same call fails in the same way."""
    place = write_npz(tmp_path / "c.npz", *pictures(2000, side=32))
    program = """
        import resource, sys
        from sfumato.data import BadInput, read
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            read(sys.argv[1], cache=sys.argv[2])
        except BadInput as error:
            print(error)
    """
    assert "no space left to write to" in _run(program, str(place), str(tmp_path / "cache" / "deep"))
    assert not (tmp_path / "cache").exists()
    assert len(read(place, cache=tmp_path / "cache").pixels) == 2000


def test_decoders_say_nothing_about_single_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    """A TIFF that claims 768 samples a pixel makes Pillow log that number."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="TIFF")
    samples = struct.pack("<HHI", 277, 3, 1)
    content = buffer.getvalue()
    assert samples in content
    place = _bad_file(tmp_path / "c", content.replace(samples + b"\x03\0", samples + b"\0\x03"))
    with pytest.raises(BadInput, match="cannot be decoded"):
        read(place)
    assert not caplog.records and not recwarn.list
    with pytest.raises(UnidentifiedImageError):
        Image.open(place / "cat" / f"{SECRET}.png")
    assert caplog.records  # it does so when nobody stops it
