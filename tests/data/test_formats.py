"""The same pictures come out of every format, whatever way they were stored."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data.samples import (
    CLASSES,
    encoded,
    pictures,
    table,
    write_arrow,
    write_folder,
    write_idx,
    write_npz,
    write_parquet,
)
from sfumato.data import BadInput, PrivateImages, PublicImages, read


def _by_class(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(labels, kind="stable")
    return images[order], labels[order]


def test_folder(tmp_path: Path) -> None:
    images, labels = pictures()
    found = read(write_folder(tmp_path / "c", images, labels))
    expected_images, expected_labels = _by_class(images, labels)
    np.testing.assert_array_equal(found.pixels, expected_images)
    np.testing.assert_array_equal(found.labels, expected_labels)
    assert found.classes == CLASSES and found.persons is None


def test_empty_class_and_declared_class_without_folder_are_legal(tmp_path: Path) -> None:
    images, _ = pictures(4)
    write_folder(tmp_path / "c", images, np.zeros(4, int))
    found = read(tmp_path / "c", classes=("newt", "dog", "cat", "yak"))
    assert found.classes == ("newt", "dog", "cat", "yak")
    assert found.labels.tolist() == [2, 2, 2, 2]


def test_folder_names_in_any_script(tmp_path: Path) -> None:
    images, _ = pictures(1)
    for name in ("猫", "naïve café", "a.b"):
        (tmp_path / "c" / name).mkdir(parents=True)
        (tmp_path / "c" / name / "1.png").write_bytes(encoded(images[0]))
    assert read(tmp_path / "c").classes == ("a.b", "naïve café", "猫")


def test_npz(tmp_path: Path) -> None:
    for number, layout in enumerate(["NCHW", "NHWC", "float", "uint16", "int64"]):
        here = tmp_path / str(number)
        here.mkdir()
        images, labels = pictures()
        stored = {
            "NCHW": images,
            "NHWC": np.moveaxis(images, 1, -1),
            "float": images / np.float32(255),
            "uint16": images.astype(np.uint16) * 257,
            "int64": images.astype(np.int64),
        }[layout]
        found = read(write_npz(here / "c.npz", stored, labels[:, None]))
        np.testing.assert_array_equal(found.pixels, images)
        np.testing.assert_array_equal(found.labels, labels)
        assert found.classes == CLASSES


def test_npz_with_persons_and_names_as_labels(tmp_path: Path) -> None:
    images, labels = pictures()
    np.savez(tmp_path / "c.npz", x=images, y=np.array(CLASSES)[labels], persons=np.array(["b", "a", "b"] * 4))
    found = read(tmp_path / "c.npz", image_column="x", label_column="y", classes=CLASSES)
    np.testing.assert_array_equal(found.labels, labels)
    assert found.persons is not None and found.persons.tolist() == [0, 1, 0] * 4


def test_idx_splits(tmp_path: Path) -> None:
    for number, packed in enumerate([True, False]):
        own_folder = tmp_path / str(number)
        own_folder.mkdir()
        images, labels = pictures(channels=1)
        write_idx(own_folder / "c", images, labels, packed=packed)
        write_idx(own_folder / "c", images[:4], labels[:4], split="t10k", packed=packed)
        train, test = (read(own_folder / "c", classes=3, split=split) for split in ("train", "test"))
        np.testing.assert_array_equal(train.pixels, images)
        np.testing.assert_array_equal(test.labels, labels[:4])
        assert train.classes == ("0", "1", "2")
        with pytest.raises(BadInput, match="no split called 'dev'"):
            read(own_folder / "c", classes=3, split="dev")


def test_tables(tmp_path: Path) -> None:
    for number, write in enumerate([write_parquet, write_arrow]):
        own_folder = tmp_path / str(number)
        own_folder.mkdir()
        images, labels = pictures()
        place = write(own_folder / "c", images, labels)
        found = read(place, person_column="person")
        np.testing.assert_array_equal(found.pixels, images)
        np.testing.assert_array_equal(found.labels, labels)
        assert found.classes == CLASSES
        assert found.persons is not None and found.persons.tolist() == [row // 3 for row in range(12)]


def test_parquet_shards_and_splits(tmp_path: Path) -> None:
    images, labels = pictures()
    (tmp_path / "c" / "data").mkdir(parents=True)
    for name, part in {
        "train-00000-of-00002": slice(0, 5),
        "train-00001-of-00002": slice(5, 9),
        "test": slice(9, 12),
    }.items():
        write_parquet(tmp_path / "c" / "data" / f"{name}.parquet", images[part], labels[part])
    np.testing.assert_array_equal(read(tmp_path / "c").pixels, images[:9])
    np.testing.assert_array_equal(read(tmp_path / "c", split="test").pixels, images[9:])


def test_unlabelled_rows_follow_the_rule(tmp_path: Path) -> None:
    images, labels = pictures(3)
    whole = table(images, labels)
    holes = whole.set_column(1, "label", [["dog", None, ""]])
    pq.write_table(holes, tmp_path / "c.parquet")
    with pytest.raises(BadInput, match="no label"):
        read(tmp_path / "c.parquet", classes=CLASSES)
    found = read(tmp_path / "c.parquet", classes=CLASSES, unlabelled="leave out")
    np.testing.assert_array_equal(found.pixels, images[:1])
    assert len(read(tmp_path / "c.parquet", labelled=False).pixels) == 3


def _one(tmp_path: Path, picture: Image.Image, kind: str, name: str = "1", **save: object) -> Path:
    place = tmp_path / "c" / "only"
    place.mkdir(parents=True)
    picture.save(place / f"{name}.{kind.lower()}", format=kind, **save)
    return tmp_path / "c"


def test_exif_rotation(tmp_path: Path) -> None:
    upright = Image.new("RGB", (40, 20), "black")
    upright.paste("white", (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned: to be shown rotated by 90 degrees clockwise
    stored = upright.transpose(Image.Transpose.ROTATE_90)
    found = read(_one(tmp_path, stored, "JPEG", exif=exif, quality=95)).pixels[0]
    assert found.shape == (3, 20, 40)
    assert found[:, :, :16].min() > 200 and found[:, :, 24:].max() < 50


def test_sixteen_bits(tmp_path: Path) -> None:
    deep = np.array([[0, 257, 32768, 65535]], np.uint16)
    found = read(_one(tmp_path, Image.fromarray(deep), "PNG")).pixels[0]
    assert found.tolist() == [[[0, 1, 128, 255]]]


def test_palette_with_transparency_lies_on_white(tmp_path: Path) -> None:
    picture = Image.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((1, 0), 1)
    found = read(_one(tmp_path, picture, "PNG", transparency=1)).pixels[0]
    assert found[:, 0, 0].tolist() == [255, 0, 0] and found[:, 0, 1].tolist() == [255, 255, 255]


def test_cmyk(tmp_path: Path) -> None:
    picture = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    found = read(_one(tmp_path, picture, "JPEG", quality=95)).pixels[0]
    assert np.abs(found.mean(axis=(1, 2)) - (255, 0, 0)).max() < 10


def test_colour_size_and_crop(tmp_path: Path) -> None:
    wide = Image.new("RGB", (60, 20), (255, 0, 0))
    wide.paste((0, 255, 0), (20, 0, 40, 20))
    place = _one(tmp_path, wide, "PNG")
    assert read(place, size=10, colour="grey").pixels.shape == (1, 1, 10, 10)
    centre = read(place, size=10).pixels[0]
    assert centre[0].max() == 0 and centre[1].min() == 255  # the green middle square and nothing else
    squeezed = read(place, size=10, crop="none").pixels[0]
    assert squeezed[0, 5, 0] > 200 and squeezed[1, 5, 5] > 200
    assert read(place, crop=12).pixels.shape == (1, 3, 12, 12)
    with pytest.raises(BadInput, match="smaller than the 30 pixels"):
        read(place, crop=30)


def test_resize_is_antialiased(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    found = read(_one(tmp_path, Image.fromarray(stripes), "PNG"), size=8).pixels
    assert np.abs(found[0, 0, 2:-2, 2:-2].astype(int) - 127).max() < 8


def test_mixed_sizes_need_a_size(tmp_path: Path) -> None:
    place = _one(tmp_path, Image.new("L", (8, 8)), "PNG")
    Image.new("L", (9, 9)).save(place / "only" / "2.png")
    with pytest.raises(BadInput, match="differ in size or colour"):
        read(place, skip_bad=True)
    assert read(place, size=8).pixels.shape == (2, 1, 8, 8)


def test_private_images_tell_nothing(tmp_path: Path) -> None:
    images, labels = pictures()
    place = write_folder(tmp_path / "c", images, labels)
    private = PrivateImages.from_folder(place, size=8)
    assert private.shape == (3, 8, 8) and private.classes == CLASSES
    assert repr(private) == "PrivateImages(shape=(3, 8, 8), classes=3)"
    with pytest.raises(TypeError):
        len(private)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        iter(private)  # type: ignore[call-overload]
    assert len(PublicImages.read(place)) == 12


def test_every_named_constructor_reads_its_format(tmp_path: Path) -> None:
    images, labels = pictures(channels=1)
    readings = [
        PrivateImages.read(write_npz(tmp_path / "c.npz", images, labels)),
        PrivateImages.read(write_idx(tmp_path / "i", images, labels), classes=CLASSES),
        PrivateImages.read(write_parquet(tmp_path / "c.parquet", images, labels), person_column="person"),
        PrivateImages.read(write_arrow(tmp_path / "a", images, labels)),
    ]
    assert all(private.shape == (1, 8, 8) and private.classes == CLASSES for private in readings)


def test_label_set_of_private_data_must_be_declared(tmp_path: Path) -> None:
    images, labels = pictures(channels=1)
    place = write_idx(tmp_path / "c", images, labels)
    with pytest.raises(BadInput, match="must be declared"):
        PrivateImages.read(place)
    assert PublicImages.read(place).classes == ("0", "1", "2")


def test_other_kinds_of_files(tmp_path: Path) -> None:
    images, _ = pictures(1, channels=1)
    for kind in ("BMP", "TIFF", "PPM", "WEBP", "GIF", "MPO"):
        buffer = io.BytesIO()
        Image.fromarray(images[0, 0]).save(buffer, format=kind)
        place = tmp_path / kind / "only"
        place.mkdir(parents=True)
        (place / "picture").write_bytes(buffer.getvalue())
        assert read(tmp_path / kind).pixels.shape[2:] == (8, 8)
