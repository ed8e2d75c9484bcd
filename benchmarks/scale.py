"""What large collections and several processes cost: coins, batches, reading, and training in two processes.

    python benchmarks/scale.py coins batches reading training --out docs/results/scale.json

Every figure stands beside the wall time and the processor time it took, since a machine may be busy with other work.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from sfumato.data import read
from sfumato.data.cache import MappedRows
from sfumato.methods import find
from sfumato.privacy import NoGuarantee, PrivateRecords
from sfumato.privacy.randomness import Randomness
from sfumato.privacy.sampling import Units
from sfumato.training.distributed import process_group

SHAPE = (1, 28, 28)
BATCH = 512


def timed(work: Callable[[], object], *, repeats: int = 1) -> dict[str, float]:
    """Wall and processor seconds of one call, children included; the smallest of ``repeats``."""
    found = []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), _processor()
        work()
        found.append((time.perf_counter() - wall, _processor() - processor))
    return {"wall": min(w for w, _ in found), "processor": min(p for _, p in found)}


def _processor() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def anonymous_memory() -> int:
    """Bytes of this process that are not pages of a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    return 0


def coins(folder: Path) -> dict[str, Any]:
    """Drawing a batch of 512 from ten thousand to a hundred million ids."""
    randomness = Randomness(0)
    found = {}
    for units in (10**4, 10**6, 10**7, 10**8):
        rate = BATCH / units
        steps = iter(range(100))
        found[str(units)] = timed(lambda: randomness.coins(units, rate, "bench", next(steps)), repeats=5)  # noqa: B023
    return found


def batches(folder: Path) -> dict[str, Any]:
    """Drawing and fetching a batch of 512 images of 28 × 28, at ten thousand and at ten million."""
    found: dict[str, Any] = {}
    for count in (10**4, 10**7):
        file = folder / f"pixels-{count}"
        with file.open("wb") as sparse:
            sparse.truncate(count * 784)  # a file with holes: nothing is stored
        pixels = MappedRows(file, dtype=np.uint8, mode="r", shape=(count, *SHAPE))
        pixels._handle = os.open(file, os.O_RDONLY)
        labels = np.zeros(count, dtype=np.int8)
        records = PrivateRecords(pixels, labels)
        units, randomness = Units(records, "image", max_images=1), Randomness(0)
        steps = iter(range(100))

        def batch() -> None:
            chosen = units.sample(randomness, BATCH / count, "bench", next(steps))  # noqa: B023
            records._fetch(chosen, torch.device("cpu"))  # noqa: B023

        batch()
        found[str(count)] = {**timed(batch, repeats=10), "anonymous_bytes": anonymous_memory()}
    return found


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def reading(folder: Path, count: int = 40_000) -> dict[str, Any]:
    """PNG files in parquet by one and by two processes, and raw arrays."""
    rng = np.random.default_rng(0)
    kinds = [_png(rng.integers(0, 256, (28, 28), dtype=np.uint8)) for _ in range(1000)]
    table = {"image": [{"bytes": kinds[row % 1000], "path": None} for row in range(count)]}
    pq.write_table(pa.table({**table, "label": np.arange(count) % 10}), folder / "images.parquet", row_group_size=1000)
    found: dict[str, Any] = {"images": count}
    for workers in (1, 2):
        cache = folder / f"cache-{workers}"
        work = timed(lambda: read(folder / "images.parquet", classes=10, workers=workers, cache=cache))  # noqa: B023
        found[f"parquet, {workers} processes"] = {**work, "per_second": count / work["wall"]}
    raw = 5 * count
    np.savez(folder / "raw.npz", images=np.zeros((raw, 28, 28), np.uint8), labels=np.arange(raw) % 10)
    work = timed(lambda: read(folder / "raw.npz", classes=10, cache=folder / "cache-raw"))
    found["raw arrays"] = {**work, "per_second": raw / work["wall"], "images": raw}
    found["anonymous_bytes"] = anonymous_memory()
    return found


def training(folder: Path) -> dict[str, Any]:
    """The steps of a gradient-bound method in one process and in two, one thread each."""
    found: dict[str, Any] = {}
    for processes in (1, 2):
        out = folder / f"{processes}.json"
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [sys.executable, *launch, __file__, "worker", "--out", str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found[str(processes)] = json.loads(out.read_text())
    one, two = found["1"], found["2"]
    found["speed-up"] = one["seconds_per_step"] / two["seconds_per_step"]
    found["processor seconds, one ÷ the slower of two"] = one["processor_per_step"] / two["processor_per_step"]
    return found


def worker(out: Path) -> None:
    """One process of ``training``: seconds of a step after the first ones."""
    torch.set_num_threads(1)
    count, steps = 40_960, 6
    pixels = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    records = PrivateRecords(pixels, np.arange(count) % 10, classes=tuple("0123456789"), declared_size=count)
    method = find("dp-vae")(steps=steps, sampling_rate=0.1)  # type: ignore[call-arg]
    marks: list[tuple[int, float, float]] = []

    class Watch:
        """Notes when steps end."""

        def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
            marks.append((done, time.perf_counter(), time.process_time()))

    with process_group("cpu") as (world, _):
        method.fit(records, NoGuarantee(), device="cpu", progress=Watch(), seed=0)
        if world.first:
            (start, wall, processor), (stop, end, spent) = marks[1], marks[-1]
            per_step = {"seconds_per_step": (end - wall) / (stop - start)}
            out.write_text(json.dumps({**per_step, "processor_per_step": (spent - processor) / (stop - start)}))


PARTS = {"coins": coins, "batches": batches, "reading": reading, "training": training}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, "worker"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.parts == ["worker"]:
        worker(arguments.out)
        return
    found: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    for part in arguments.parts:
        with tempfile.TemporaryDirectory() as folder:
            found[part] = PARTS[part](Path(folder))
        print(part, json.dumps(found[part], indent=1), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
