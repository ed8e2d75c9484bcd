"""A thousand malformed inputs: each is read or refused by the one error, and none leaves a file behind."""

from __future__ import annotations

import gc
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.samples import encoded, pictures, write_arrow, write_folder, write_idx, write_npz, write_parquet
from sfumato.data import BadInput, clear_cache, read

EACH = 84
"""Inputs for each of the twelve kinds of file: 1,008 in all."""


def _folder_of(kind: str) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        images, labels = pictures(2)
        write_folder(place, images, labels * 0)
        (place / "cat" / "bad").write_bytes(encoded(images[0], kind))
        return place / "cat" / "bad"

    return make


def _npz(place: Path) -> Path:
    return write_npz(place / "c.npz", *pictures(5))


def _npz_stored(place: Path) -> Path:
    images, labels = pictures(5)
    np.savez(place / "c.npz", images=images, labels=labels, classes=np.array(["a", "b", "c"]))
    return place / "c.npz"


def _idx(place: Path) -> Path:
    return write_idx(place, *pictures(5, channels=1)) / "train-images-idx3-ubyte.gz"


def _idx_plain(place: Path) -> Path:
    return write_idx(place, *pictures(5, channels=1), packed=False) / "train-images-idx3-ubyte"


def _parquet(place: Path) -> Path:
    return write_parquet(place / "c.parquet", *pictures(5))


def _arrow(place: Path) -> Path:
    return write_arrow(place / "a", *pictures(5)) / "data-00000-of-00002.arrow"


def _arrow_state(place: Path) -> Path:
    return write_arrow(place / "a", *pictures(5)) / "state.json"


MAKERS: dict[str, Callable[[Path], Path]] = {
    **{kind: _folder_of(kind) for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP")},
    "npz": _npz,
    "npz stored": _npz_stored,
    "idx": _idx,
    "idx plain": _idx_plain,
    "parquet": _parquet,
    "arrow": _arrow,
    "arrow state": _arrow_state,
}


def _mutated(content: bytes, random: np.random.Generator) -> bytes:
    """Bits flipped, bytes cut, doubled or overwritten; often near the start or the end, where headers are."""
    changed = bytearray(content)
    for _ in range(int(random.integers(1, 4))):
        size = max(1, len(changed))
        near = random.choice(["start", "end", "any"])
        at = int(random.integers(size if near == "any" else min(size, 64)))
        at = size - 1 - at if near == "end" else at
        match random.integers(6):
            case 0:
                changed[at : at + 1] = bytes([int(random.integers(256))])
            case 1:
                del changed[at:]
            case 2:
                del changed[at : at + int(random.integers(1, 40))]
            case 3:
                changed[at:at] = random.bytes(int(random.integers(1, 40)))
            case 4:
                extreme = int(random.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
                changed[at : at + 4] = struct.pack(str(random.choice(["<I", ">I"])), extreme)
            case _:
                changed[at:at] = changed[at : at + int(random.integers(1, 200))]
    return bytes(changed)


def _collection(file: Path, root: Path) -> Path:
    """What a user would point at."""
    return file if file.suffix in (".npz", ".parquet") else file.parent if file.name != "bad" else root


@pytest.fixture
def collected() -> None:
    """Files that earlier tests left open are not warned of while every warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("collected")
def test_malformed_inputs(tmp_path: Path, kind: str) -> None:
    random = np.random.default_rng(list(kind.encode()))
    root, cache = tmp_path / "c", tmp_path / "cache"
    root.mkdir()
    file = MAKERS[kind](root)
    sound = file.read_bytes()
    place = _collection(file, root)
    classes = 3 if kind.startswith("idx") else None
    assert len(read(place, classes=classes, cache=cache).pixels) > 0
    shutil.rmtree(cache)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    refused = 0
    for _ in range(EACH):
        file.write_bytes(_mutated(sound, random))
        try:
            read(place, classes=classes, size=8, colour="rgb", cache=cache, skip_bad=bool(random.integers(2)))
        except BadInput:
            refused += 1
            assert not cache.exists()
        else:
            clear_cache(cache)
            cache.rmdir()
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert refused > EACH // 5
