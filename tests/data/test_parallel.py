"""Large collections are read in several processes, and a reading that was killed goes on."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from sfumato.data import BadInput, read
from sfumato.data import parallel as parallel_module
from sfumato.data.decode import ImageTransform
from sfumato.data.formats import npz as npz_module
from sfumato.data.images import Images
from sfumato.data.source import Selection


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
from sfumato.data import parallel, read
parallel.PART = 256
read({str(shards)!r}, cache={str(tmp_path)!r}, workers=2, classes=3)
"""
    process = subprocess.Popen([sys.executable, "-c", program])
    while not any(tmp_path.glob("reading-*/[0-9]*[0-9]")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (kept,) = tmp_path.glob("reading-*")
    while any(kept.glob("*.new")):
        time.sleep(0.05)  # processes of the killed reading end after the part that they are at
    before = {part.name: part.stat().st_ino for part in kept.iterdir() if part.suffix != ".new"}
    assert before and len(before) <= 3
    seen: list[int] = []
    again = read(shards, cache=tmp_path, workers=2, classes=3, progress=seen.append)
    assert len(seen) == 3 - len(before)  # parts that were not there yet
    fresh = read(shards, cache=tmp_path / "fresh", workers=1, classes=3)
    assert np.array_equal(np.asarray(again.pixels), np.asarray(fresh.pixels))
    assert not list(tmp_path.glob("reading-*"))


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
