"""Large collections are read in several processes, and a reading that was killed goes on."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sfumato.data import BadInput, clear_cache, read
from sfumato.data import parallel as parallel_module
from sfumato.data import source as listing_module
from sfumato.data.decode import ImageTransform
from sfumato.data.formats import arrays as npz_module
from sfumato.data.formats import folder as folder_module
from sfumato.data.formats import tables as parquet_module
from sfumato.data.images import Images
from sfumato.data.inspection import inspect
from sfumato.data.parallel import _plain
from sfumato.data.part_worker import PartReader
from sfumato.data.reader import Reading, open_source
from sfumato.data.source import ListedSource, Selection
from sfumato.files import locked


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parquet files of 400 and 260 small images with persons, in row groups of 60."""
    folder = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(0)
    kinds = [png(rng.integers(0, 256, (4, 4), dtype=np.uint8)) for _ in range(50)]
    for number, rows in enumerate((400, 260)):
        table = pa.table(
            {
                "image": [{"bytes": kinds[row % 50], "path": None} for row in range(rows)],
                "label": pa.array(np.arange(rows) % 3),
                "person": pa.array([f"p{row * 7 % 90}" for row in range(rows)]),
            }
        )
        pq.write_table(table, folder / f"train-{number:05d}-of-00002.parquet", row_group_size=60)
    return folder


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_module, "PART", 256)


def arrays(images: Images) -> list[np.ndarray]:
    assert images.persons is not None
    return [np.asarray(images.pixels), np.asarray(images.labels), np.asarray(images.persons)]


def test_several_processes_read_what_one_reads(shards: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    options = {"classes": 3, "person_column": "person"}
    alone = read(shards, cache=tmp_path / "one", workers=1, **options)  # type: ignore[arg-type]
    both = read(shards, cache=tmp_path / "two", workers=2, progress=seen.append, **options)  # type: ignore[arg-type]
    for one, other in zip(arrays(alone), arrays(both), strict=True):
        assert np.array_equal(one, other)
    assert seen == sorted(seen) and seen[-1] == 100 and len(seen) == 3
    assert [path.name[:7] for path in (tmp_path / "two").iterdir()] == ["pixels-"]


def test_a_bad_record_is_refused_and_leaves_nothing(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not in the declared label set"):
        read(shards, cache=tmp_path, workers=2, classes=2)
    assert list(tmp_path.iterdir()) == []
    skipped = read(shards, cache=tmp_path, workers=2, classes=2, skip_bad=True, internal=True)
    assert len(skipped.labels) == 267 + 174 and len(skipped.skipped) == 133 + 86


@pytest.mark.long
def test_a_killed_reading_goes_on_where_it_was(shards: Path, tmp_path: Path) -> None:
    program = f"""
import time
from sfumato.data import parallel, read
parallel.PART = 256
read({str(shards)!r}, cache={str(tmp_path)!r}, workers=2, classes=3, progress=lambda done: time.sleep(600))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE)
    while not any(tmp_path.glob("reading-*/[0-9]*[0-9]")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    # Its processes end after the part that they are at, also one that has not begun with it: they all hold its stderr.
    process.communicate()
    (kept,) = tmp_path.glob(f"reading-{'?' * 32}")
    before = {part.name: part.stat().st_ino for part in kept.iterdir() if part.suffix != ".new"}
    assert before and len(before) <= 3
    seen: list[int] = []
    again = read(shards, cache=tmp_path, workers=2, classes=3, progress=seen.append)
    assert len(seen) == 3 - len(before)  # parts that were not there yet
    fresh = read(shards, cache=tmp_path / "fresh", workers=1, classes=3)
    assert np.array_equal(np.asarray(again.pixels), np.asarray(fresh.pixels))
    assert not list(tmp_path.glob("reading-*"))


@pytest.mark.long
def test_a_process_that_ends_does_not_wait_for_its_reading(shards: Path, tmp_path: Path) -> None:
    """Several processes read in a thread beside the exchanges by which they notice that one of them has ended."""
    program = f"""
import threading, time
from sfumato.data import parallel, read
parallel.PART = 16
seen = threading.Event()
def progress(done):
    seen.set()
    time.sleep(600)
options = {{"cache": {str(tmp_path)!r}, "workers": 2, "classes": 3, "progress": progress}}
threading.Thread(target=read, args=({str(shards)!r},), kwargs=options, daemon=True).start()
seen.wait()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    (kept,) = tmp_path.glob(f"reading-{'?' * 32}")
    parts = [part for part in kept.iterdir() if part.name.isdecimal()]
    assert 1 <= len(parts) <= 3  # of 42: the first, and what the two processes were at


@pytest.mark.long
def test_a_reading_that_is_killed_while_it_tidies_up_is_whole(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: Path, **options: object) -> None:
        for file in sorted(Path(folder).rglob("*"))[:5]:
            if file.is_file():
                file.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", killed)
        read(shards, cache=tmp_path, workers=2, classes=3)
    (entry,) = tmp_path.glob("pixels-*")
    shutil.rmtree(entry)
    assert len(read(shards, cache=tmp_path, workers=2, classes=3).labels) == 660


def test_at_least_one_process_reads() -> None:
    with pytest.raises(ValueError, match="at least one process"):
        parallel_module.Workers(0)


def test_parts_of_large_arrays_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    whole = {"images": rng.integers(0, 256, (700, 4, 4), dtype=np.uint8), "labels": rng.integers(0, 3, 700)}
    np.savez(tmp_path / "raw.npz", **whole, persons=np.array([f"p{row % 90}" for row in range(700)]))
    np.savez_compressed(tmp_path / "packed.npz", **whole)
    monkeypatch.setattr(npz_module, "LARGE", 600)
    selection = Selection(classes=("a", "b", "c"))
    assert npz_module.Npz(tmp_path / "packed.npz", selection).count() is None
    source = npz_module.Npz(tmp_path / "raw.npz", selection)
    assert source.count() == 700
    for start, stop in ((0, 256), (256, 512), (512, 768), (699, 701)):
        found = list(source.part(start, stop))
        rows = range(start, min(stop, 700))
        assert [(record.name, record.label, record.person) for record in found] == [
            (f"row {row}", whole["labels"][row], f"p{row % 90}") for row in rows
        ]
        for record, row in zip(found, rows, strict=True):
            assert np.array_equal(record.load(ImageTransform())[0], whole["images"][row])


ODD = 'é\n"'


def folder_and_list(place: Path, count: int = 600) -> tuple[Path, Path]:
    """An image folder with ``count`` files, some with names that a line of text cannot hold, and a list of them."""
    rng = np.random.default_rng(0)
    kinds = [png(rng.integers(0, 256, (4, 4), dtype=np.uint8)) for _ in range(50)]
    rows = ["file,label,person"]
    for row in range(count):
        file = place / "folder" / "abc"[row % 3] / f"{row * 7919 % 1000:04d}{ODD * (row % 5 == 0)}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(kinds[row % 50])
        name = str(file.relative_to(place)).replace('"', '""')
        rows.append(f'"{name}",{row % 3},p{row // 4}')
    (place / "list.csv").write_text("\n".join(rows), encoding="utf-8")
    return place / "folder", place / "list.csv"


def test_folders_and_lists_are_read_in_parts_as_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, listed = folder_and_list(tmp_path)
    monkeypatch.setattr(listing_module, "_EVERY", 7)
    cases = [(folder, {"person_pattern": r"(\d\d)"}), (listed, {"classes": 3, "person_column": "person"})]
    for path, options in cases:
        alone = read(path, cache=tmp_path / "one", workers=1, **options)  # type: ignore[arg-type]
        both = read(path, cache=tmp_path / "two", workers=2, **options)  # type: ignore[arg-type]
        for one, other in zip(arrays(alone), arrays(both), strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", ["folder", "list", "shards"])
def test_a_part_costs_no_look_at_the_others(
    kind: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, listed = folder_and_list(tmp_path)
    path = {"folder": folder, "list": listed, "shards": shards}[kind]
    persons = tmp_path / "persons.csv"
    persons.write_text("file,person\n", encoding="utf-8")
    looks: list[str] = []

    def watched(before: Callable[..., Any], place: str | Path, *args: Any, **options: Any) -> Any:
        looks.append(Path(place).name)
        return before(place, *args, **options)

    for module, name in ((os, "scandir"), (io, "open"), (parquet_module, "_rows")):
        monkeypatch.setattr(module, name, partial(watched, getattr(module, name)))
    chosen = Selection(
        classes=("a", "b", "c"), person_file=persons if kind == "folder" else None, missing_persons="leave out"
    )
    reading = Reading(ImageTransform(), chosen, format=None, skip_bad=True, infer_classes=False)
    source = open_source(path, reading)
    if isinstance(source, ListedSource):
        source.use_listing(tmp_path)
    settings = {"path": str(path), "reading": _plain(asdict(reading)), "classes": "abc", "folder": str(tmp_path)}
    reader = PartReader({**settings, "size": 100})
    reader.decode(0)
    assert looks
    looks.clear()
    for start in range(100, 600, 100):
        reader.decode(start)
    assert {look for look in looks if not look.endswith(".new")} <= {"entries"}


def test_a_class_of_many_files_keeps_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = folder_and_list(tmp_path)
    monkeypatch.setattr(folder_module, "_NAMES_AT_ONCE", 60)
    found = list(folder_module.Folder(folder, Selection()).entries(tmp_path))
    expected = []
    for place in "abc":
        names = sorted(os.listdir(folder / place))
        expected += [(place, name) for turn in range(4) for name in names if zlib.crc32(name.encode()) % 4 == turn]
    assert found == expected and not list(tmp_path.glob("names-*"))


@pytest.mark.long
def test_two_readings_at_once_share_one(shards: Path, tmp_path: Path) -> None:
    program = f"""
from sfumato.data import parallel, read
parallel.PART = 256
read({str(shards)!r}, cache={str(tmp_path / "cache")!r}, workers=2, classes=3, progress=lambda done: print(done))
"""
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=1200)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(map(len, said)) == [0, 3]  # one of them decodes the three parts
    assert [entry.name[:7] for entry in (tmp_path / "cache").iterdir()] == ["pixels-"]


def test_a_disk_without_locks_is_refused(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(BadInput, match="has no file locks"):
        read(shards, cache=tmp_path, workers=2, classes=3)


def test_a_clearing_leaves_a_reading_that_is_under_way(tmp_path: Path) -> None:
    (tmp_path / f"reading-{'0' * 32}").mkdir()
    (tmp_path / f"reading-{'1' * 32}.lock").touch()
    with locked(tmp_path / f"reading-{'0' * 32}.lock"):
        clear_cache(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
    clear_cache(tmp_path)
    assert not list(tmp_path.iterdir())


def test_parts_are_kept_when_the_disk_is_full(shards: Path, tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(shards, cache=tmp_path, workers=2, classes=3, progress=interrupt)
    (kept,) = tmp_path.iterdir()
    before = {part.name for part in kept.iterdir() if part.name.isdecimal()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # the processes that decode inherit it
    try:
        with pytest.raises(BadInput, match="no space left"):
            read(shards, cache=tmp_path, workers=2, classes=3, skip_bad=True)
        with pytest.raises(BadInput, match="no space left"):
            read(shards, cache=tmp_path, workers=2, classes=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert before and before <= {part.name for part in kept.iterdir()}
    seen: list[int] = []
    again = read(shards, cache=tmp_path, workers=2, classes=3, progress=seen.append)
    assert len(seen) == 3 - len(before) and len(again.labels) == 660


def test_what_a_disk_fails_to_read_is_no_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = folder_and_list(tmp_path, 9)

    def lost(path: str, *args: Any) -> int:
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(os, "open", lost)
    with pytest.raises(BadInput, match="the disk or the network failed"):
        read(folder, skip_bad=True)
    with pytest.raises(BadInput, match="the disk or the network failed"):
        inspect(folder, Selection())


def test_several_processes_count_what_one_counts(shards: Path, tmp_path: Path) -> None:
    folder, listed = folder_and_list(tmp_path)
    (folder / "b" / "0000.png").write_bytes(b"no image")
    for number in range(150):
        (folder / "c" / f"empty {number:03d}.png").touch()
    (tmp_path / "public" / "a").mkdir(parents=True)
    shutil.copy(next((folder / "a").iterdir()), tmp_path / "public" / "a" / "known.png")
    seen: list[tuple[int, int]] = []
    for path, selection in (
        (folder, Selection(person_pattern=r"(\d\d)")),
        (listed, Selection(person_column="person")),
        (shards, Selection(person_column="person")),
    ):
        options: dict[str, Any] = {"public": tmp_path / "public", "report": lambda *done: seen.append(done)}
        one, two = (inspect(path, selection, workers=workers, **options) for workers in (1, 2))
        assert one == two and one.to_json() == two.to_json()
        assert seen[0] == (1, 0) and seen[-1] == (100, 100)
    assert one.images == 660 and one.to_json()["persons"] == 90
