"""Decoded pixels on disk: owner-only, whole or absent, found again, removable, and no burden on memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from data.samples import encoded, pictures, write_folder, write_npz, write_parquet
from sfumato.data import BadInput, PrivateImages, clear_cache, read
from sfumato.data.cache import MappedRows


def _modes(place: Path) -> set[tuple[bool, int]]:
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (place, *place.rglob("*"))}


def test_small_collections_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    read(write_npz(tmp_path / "c.npz", *pictures()))
    assert not (tmp_path / "home").exists()


def test_large_collections_go_to_the_user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    images, labels = pictures()
    old = os.umask(0)
    try:
        found = read(write_npz(tmp_path / "c.npz", images, labels), memory_limit=1000)
    finally:
        os.umask(old)
    assert isinstance(found.pixels, MappedRows) and not found.pixels.flags.writeable
    np.testing.assert_array_equal(found.pixels, images)
    np.testing.assert_array_equal(found.labels, labels)
    assert _modes(tmp_path / "home" / "sfumato") == {(True, 0o700), (False, 0o600)}
    assert clear_cache() >= images.nbytes
    assert not any((tmp_path / "home" / "sfumato").iterdir())


def test_the_same_collection_is_decoded_once_and_a_changed_one_again(tmp_path: Path) -> None:
    images, labels = pictures()
    place, cache = write_folder(tmp_path / "c", images, labels), tmp_path / "cache"
    read(place, cache=cache)
    (entry,) = cache.iterdir()
    before = entry.stat().st_mtime_ns
    again = read(place, cache=cache)
    assert [e.stat().st_mtime_ns for e in cache.iterdir()] == [before] and len(again.pixels) == 12
    (place / "cat" / "new.png").write_bytes(encoded(images[0]))
    assert len(read(place, cache=cache).pixels) == 13
    assert len(read(place, cache=cache, size=4).pixels) == 13
    assert len(list(cache.iterdir())) == 3


def test_a_damaged_entry_is_made_anew(tmp_path: Path) -> None:
    images, labels = pictures()
    place, cache = write_npz(tmp_path / "c.npz", images, labels), tmp_path / "cache"
    read(place, cache=cache)
    (entry,) = cache.iterdir()
    os.truncate(entry / "pixels", 10)
    np.testing.assert_array_equal(read(place, cache=cache).pixels, images)


def test_persons_come_back_from_the_cache(tmp_path: Path) -> None:
    place = write_parquet(tmp_path / "c.parquet", *pictures())
    for _ in range(2):
        persons = read(place, cache=tmp_path / "cache", person_column="person").persons
        assert persons is not None and persons.tolist() == [row // 3 for row in range(12)]


def test_clear_cache_removes_only_what_is_ours(tmp_path: Path) -> None:
    (tmp_path / "partial-left-by-a-killed-run").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "notes.txt").write_text("keep")
    clear_cache(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "notes.txt"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput):
        read(write_npz(tmp_path / "c.npz", *pictures()), cache=tmp_path / "file" / "cache")


def test_mapped_rows_answer_every_index_like_an_array(tmp_path: Path) -> None:
    images, labels = pictures(1000, side=4)
    mapped = read(write_npz(tmp_path / "c.npz", images, labels), cache=tmp_path / "cache").pixels
    random = np.random.default_rng(0)
    rows = random.integers(-1000, 1000, 1000)
    whole = images > 127
    for index in (rows, rows.tolist(), rows > 0, np.zeros(0, np.int64), slice(3, 9), 5, (rows, 0), whole):
        np.testing.assert_array_equal(mapped[index], images[index])
    gathered = mapped[rows]
    assert type(gathered) is np.ndarray and gathered.flags.writeable
    with pytest.raises(IndexError):
        mapped[np.array([1000])]


def _resident() -> int:
    """Pages of files that this process holds, in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssFile"].split()[0]) * 1024


def test_gathered_rows_do_not_stay_in_memory(tmp_path: Path) -> None:
    images, labels = pictures(20_000, side=32, channels=1)
    place = write_npz(tmp_path / "c.npz", images, labels)
    mapped = read(place, cache=tmp_path / "cache").pixels
    rows = np.random.default_rng(0).permutation(20_000)
    before = _resident()
    mapped[rows]
    grown = _resident() - before
    plain = np.memmap(mapped.filename, dtype=np.uint8, mode="r", shape=mapped.shape)
    plain[rows]
    assert grown < 4 << 20 < 16 << 20 < _resident() - before


def test_private_images_from_a_map(tmp_path: Path) -> None:
    place = write_npz(tmp_path / "c.npz", *pictures())
    private = PrivateImages.read(place, cache=tmp_path / "cache")
    assert private.shape == (3, 8, 8)
