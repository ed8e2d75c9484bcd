"""Several threads decode what one would, in the same order."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.samples import encoded
from sfumato.data import BadInput, read
from sfumato.data import source as source_module
from sfumato.data.inspection import inspect
from sfumato.data.source import Selection

ODD = 'é\n"'


def folder_of(place: Path, count: int = 300) -> Path:
    """An image folder, some of whose names a line of text cannot hold."""
    rng = np.random.default_rng(0)
    for row in range(count):
        file = place / "abc"[row % 3] / f"{row * 7919 % 1000:04d}{ODD * (row % 5 == 0)}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(rng.integers(0, 256, (1, 4, 4), dtype=np.uint8)))
    return place


def test_several_threads_read_what_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "folder")
    (folder / "b" / "0500.png").write_bytes(b"no image")
    found = []
    for threads in (1, 3):
        monkeypatch.setattr(source_module, "_THREADS", threads)
        found.append(read(folder, person_pattern=r"(\d\d)", skip_bad=True, internal=True))
        assert inspect(folder, Selection(person_pattern=r"(\d\d)")).images == 300
    one, other = found
    assert len(one.labels) == 300 and one.skipped == other.skipped and len(one.skipped) == 1
    assert one.persons is not None and other.persons is not None
    for name in ("pixels", "labels", "persons"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_what_a_disk_fails_to_read_is_no_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, 9)

    def lost(path: str, *args: Any) -> int:
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(os, "open", lost)
    with pytest.raises(BadInput, match="the disk or the network failed"):
        read(folder, skip_bad=True)
    with pytest.raises(BadInput, match="the disk or the network failed"):
        inspect(folder, Selection())
