"""Reads a large collection that is made on the spot, kills the reading halfway with SIGKILL, and reads on.

    python benchmarks/reading.py --count 1000000 --place /tmp/large --out docs/results/reading-1m.json
    python benchmarks/reading.py --count 10000000 --place /tmp/large --out docs/results/reading-10m.json
    python benchmarks/reading.py --rehearse

Images are 28 × 28 grey noise, which PNG cannot compress: as PNG files in parquet shards, and as raw arrays. The rate
counts everything from the start to the kill and from the second start to the end. Memory is RssAnon: the largest in
any process, and that of all of them together. Afterwards batches of 512 are drawn from the collection and from one of
ten thousand images, in turn. The input and the cache are removed at the end; they need 24 GB for ten million images.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from sfumato.data import PrivateImages, parallel, read
from sfumato.experiments.results import current_commit
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.sampling import Units

SIDE, BATCH, FEW = 28, 512, 10_000
BLOCK, SHARD = 1000, 250_000
KINDS = ("png", "raw")
REPEATS = 300


def write_png(place: Path, count: int) -> Path:
    """Shards of PNG files in row groups of a thousand; a thousand different files, over and over."""
    place.mkdir()
    rng = np.random.default_rng(0)
    kinds = []
    for _ in range(BLOCK):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)).save(buffer, "png")
        kinds.append({"bytes": buffer.getvalue(), "path": None})
    group = pa.table({"image": kinds, "label": np.arange(BLOCK) % 10})
    shards = -(-count // SHARD)
    for shard in range(shards):
        file = place / f"train-{shard:05d}-of-{shards:05d}.parquet"
        with pq.ParquetWriter(file, group.schema) as writer:
            for start in range(shard * SHARD, min(count, (shard + 1) * SHARD), BLOCK):
                writer.write_table(group.slice(0, count - start))
    return place


def write_raw(place: Path, count: int) -> Path:
    """An uncompressed npz file, written in blocks."""
    rng = np.random.default_rng(0)
    block = rng.integers(0, 256, (BLOCK, SIDE, SIDE), dtype=np.uint8)
    arrays = {"images": block, "labels": (np.arange(BLOCK) % 10).astype(np.int64)}
    with zipfile.ZipFile(place.with_suffix(".npz"), "w", zipfile.ZIP_STORED) as archive:
        for name, rows in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": rows.dtype.str, "fortran_order": False, "shape": (count, *rows.shape[1:])}
                np.lib.format.write_array_header_1_0(file, header)
                for start in range(0, count, BLOCK):
                    file.write(rows[: count - start].tobytes())
    return place.with_suffix(".npz")


def anonymous(process: int) -> int:
    """Bytes of a process that are not pages of a file; 0 when it has ended."""
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def family(process: int) -> list[int]:
    """The process and its children."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(number) for number in task.read_text().split()]
        except OSError:
            continue
    return found


class Reading:
    """Processes that read a collection, watched until they end or are killed."""

    def __init__(self, path: Path, cache: Path) -> None:
        self._words = [sys.executable, __file__, "--child", str(path), str(cache)]
        self._cache = cache
        self.seconds = 0.0
        self.largest_process = self.all_processes = 0

    def parts(self) -> int:
        """Parts that are complete."""
        return sum(part.name.isdecimal() for part in self._cache.glob("reading-*/*"))

    def run(self, *, until: int | None = None) -> None:
        """Read; with ``until``, kill the reading when so many parts are complete."""
        begun = time.monotonic()
        process = subprocess.Popen(self._words)
        while process.poll() is None:
            sizes = [anonymous(number) for number in family(process.pid)]
            self.largest_process = max(self.largest_process, *sizes)
            self.all_processes = max(self.all_processes, sum(sizes))
            if until is not None and self.parts() >= until:
                process.send_signal(signal.SIGKILL)
                process.wait()
                while any(self._cache.glob("reading-*/*.new")):  # its children end after the part that they are at
                    time.sleep(0.05)
                self.seconds += time.monotonic() - begun
                return
            time.sleep(0.05)
        self.seconds += time.monotonic() - begun
        if process.returncode or until is not None:
            raise RuntimeError(f"the reading ended with status {process.returncode}")


def reading(kind: str, count: int, folder: Path) -> dict[str, Any]:
    """Rate, memory and restart of a reading, and the time of a batch afterwards."""
    begun = time.monotonic()
    path = (write_png if kind == "png" else write_raw)(folder / kind, count)
    print(f"{kind}: input made in {time.monotonic() - begun:.0f} s", flush=True)
    parts, cache = -(-count // parallel.PART), folder / f"cache-{kind}"
    watched = Reading(path, cache)
    watched.run(until=parts // 3)
    kept = watched.parts()
    killed_after = watched.seconds
    watched.run()
    left = json.loads((cache / "facts.json").read_text())
    found = {
        "images": count,
        "seconds": watched.seconds,
        "images_per_second": count / watched.seconds,
        "seconds_to_the_kill": killed_after,
        "parts": parts,
        "parts_kept_after_the_kill": kept,
        "parts_decoded_after_the_kill": left["decoded"],
        "largest_process_anonymous_bytes": watched.largest_process,
        "all_processes_anonymous_bytes": watched.all_processes,
    }
    print(kind, json.dumps(found, indent=1), flush=True)
    return found


def batches_of(kind: str, count: int, folder: Path) -> dict[str, Any]:
    """Medians at ten thousand images and in the collection that was read, in turn so that both see the same load."""
    few = write_raw(folder / "few", FEW)
    sources = {FEW: Batches(few, folder / "cache-few", FEW)}
    sources[count] = Batches(folder / kind if kind == "png" else folder / "raw.npz", folder / f"cache-{kind}", count)
    times: dict[int, list[float]] = {size: [] for size in sources}
    for _ in range(REPEATS):
        for size, source in sources.items():
            times[size].append(source.seconds())
    small, large = (statistics.median(times[size]) for size in (FEW, count))
    found = {"few": FEW, "seconds_few": small, "seconds_many": large, "ratio": large / small}
    return {**found, "anonymous_bytes": anonymous(os.getpid())}


def child(path: Path, cache: Path) -> None:
    """The process that is killed."""
    decoded: list[int] = []
    read(path, classes=10, cache=cache, workers=2, progress=decoded.append)
    (cache / "facts.json").write_text(json.dumps({"decoded": len(decoded)}))


class Batches:
    """Batches of 512 from a collection that was read."""

    def __init__(self, path: Path, cache: Path, count: int) -> None:
        self._records = PrivateImages.read(path, classes=10, cache=cache)
        self._units = Units(self._records, "image", max_images=1)
        self._randomness, self._rate, self._step = Randomness(0), BATCH / count, 0

    def seconds(self) -> float:
        """What the next batch takes."""
        self._step += 1
        begun = time.perf_counter()
        units = self._units.sample(self._randomness, self._rate, "bench", self._step)
        self._records._fetch(units, torch.device("cpu"))
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--place", type=Path, help="a folder for input and cache, which are removed at the end")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="a small collection, to see that everything runs")
    parser.add_argument("--child", type=Path, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(*chosen.child)
        return
    count = 200_000 if chosen.rehearse else chosen.count
    load = os.getloadavg()[0]
    if chosen.place is not None:
        chosen.place.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"command": f"python benchmarks/reading.py --count {count}", "load_before": load}
    found |= {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    with tempfile.TemporaryDirectory(dir=chosen.place) as temporary:
        folder = Path(temporary)
        for kind in chosen.kinds:
            found[kind] = reading(kind, count, folder)
            if kind == chosen.kinds[-1]:
                found["batches"] = batches_of(kind, count, folder)
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    print(json.dumps(found["batches"], indent=1), flush=True)
    if chosen.out:
        found["commit"] = current_commit()
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
