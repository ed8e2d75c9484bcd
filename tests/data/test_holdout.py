"""Test images are never training images: parts of a collection, images held out, copies refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.samples import pictures, write_folder, write_idx, write_npz
from sfumato.data import BadInput, Images, PrivateImages, read
from sfumato.data.cache import ChosenRows
from sfumato.data.holdout import HoldOut, read_train_and_test

KEY = "00" * 16


def images(count: int = 400, persons: int | None = None) -> Images:
    pixels, labels = pictures(count, side=4)
    owners = None if persons is None else np.arange(count) % persons
    return Images(pixels, labels, ("cat", "dog", "newt"), owners)


def test_the_share_is_about_right_and_the_parts_are_disjoint() -> None:
    train, test = HoldOut(0.25, KEY).split(images())
    assert len(train.labels) + len(test.labels) == 400 and 60 <= len(test.labels) <= 140
    assert not {pixels.tobytes() for pixels in train.pixels} & {pixels.tobytes() for pixels in test.pixels}


def test_another_key_draws_another_part() -> None:
    one, two = (HoldOut(0.5, key).split(images())[1].pixels for key in (KEY, "11" * 16))
    assert one.shape != two.shape or not np.array_equal(one, two)


def test_whether_a_unit_is_held_out_depends_on_it_alone() -> None:
    whole = images()
    held = {pixels.tobytes() for pixels in HoldOut(0.5, KEY).split(whole)[1].pixels}
    part = replace(whole, pixels=whole.pixels[100:], labels=whole.labels[100:])
    again = {pixels.tobytes() for pixels in HoldOut(0.5, KEY).split(part)[1].pixels}
    assert again == {pixels.tobytes() for pixels in part.pixels} & held


def test_persons_stay_whole() -> None:
    whole = images(persons=40)
    train, test = HoldOut(0.5, KEY).split(whole)
    owner = {pixels.tobytes(): person for pixels, person in zip(whole.pixels, whole.persons, strict=True)}  # type: ignore[arg-type]
    of_train, of_test = ({owner[pixels.tobytes()] for pixels in part.pixels} for part in (train, test))
    assert of_train and of_test and not of_train & of_test
    assert test.persons is not None and set(test.persons) == set(range(len(of_test)))


def test_a_collection_without_a_test_part_is_refused(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "c", *pictures())
    with pytest.raises(BadInput, match="no test part") as caught:
        read_train_and_test(place)
    assert "--hold-out" in str(caught.value)
    train, test = read_train_and_test(place, hold_out=HoldOut(0.5, KEY))
    assert len(train.labels) + len(test.labels) == 12
    with pytest.raises(BadInput, match="repeat the training images"):
        read_train_and_test(place, place)


def test_the_parts_of_a_collection_are_used(tmp_path: Path) -> None:
    write_idx(tmp_path / "c", *pictures(30, channels=1))
    write_idx(tmp_path / "c", *pictures(10, channels=1, seed=1), split="t10k")
    train, test = read_train_and_test(tmp_path / "c", classes=3)
    assert (len(train.labels), len(test.labels)) == (30, 10)
    elsewhere = write_npz(tmp_path / "test.npz", *pictures(7, channels=1, seed=2))
    assert len(read_train_and_test(tmp_path / "c", elsewhere, classes=("cat", "dog", "newt"))[1].labels) == 7


def test_key_and_share_can_be_kept(tmp_path: Path) -> None:
    HoldOut(0.3, KEY, "image").save(tmp_path / "hold_out.json")
    assert HoldOut.load(tmp_path / "hold_out.json") == HoldOut(0.3, KEY, "image")
    assert (tmp_path / "hold_out.json").stat().st_mode & 0o077 == 0
    with pytest.raises(FileNotFoundError, match="without --hold-out"):
        HoldOut.load(tmp_path / "other.json")
    with pytest.raises(ValueError, match="between 0 and 1"):
        HoldOut(1.5, KEY)
    assert read(write_npz(tmp_path / "c.npz", *pictures())).persons is None


def test_the_pixels_of_the_training_part_stay_on_disk(tmp_path: Path) -> None:
    for number, persons in enumerate([None, 40]):
        here = tmp_path / str(number)
        here.mkdir()
        division, whole = HoldOut(0.5, KEY), images(persons=persons)
        owners = {} if whole.persons is None else {"persons": whole.persons}
        np.savez(here / "c.npz", images=whole.pixels, labels=whole.labels, **owners)
        found = division.training_part(read(here / "c.npz", classes=3, cache=here / "cache"))
        expected, _ = division.split(whole)
        assert isinstance(found.pixels, ChosenRows) and np.array_equal(found.labels, expected.labels)
        assert found.pixels.shape == expected.pixels.shape and np.array_equal(np.asarray(found.pixels), expected.pixels)
        rows = np.array([3, 1, 7])
        private = [PrivateImages.from_images(part) for part in (found, expected)]
        one, other = (part._fetch(rows, torch.device("cpu")) for part in private)
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
        assert persons is None or np.array_equal(found.persons, expected.persons)  # type: ignore[arg-type]
        assert isinstance(division.training_part(whole).pixels, np.ndarray)  # in memory, a plain array
