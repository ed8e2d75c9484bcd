"""Peak memory while a dataset is read and Poisson batches are drawn from it, at several sizes.

    python benchmarks/memory.py                      10 thousand and 1 million pictures of 32 × 32, parquet
    python benchmarks/memory.py --sizes 10000 10000000 --kind npz --channels 1

Each size runs in a process of its own; the input is written in a stream beforehand. The batches have the same
expected size whatever the dataset's, as in training: what may not grow is the reader and the map.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

SIDE = 32
BATCH = 512
DRAWS = 100
BLOCK = 1000


def write_parquet(path: Path, count: int, channels: int) -> None:
    """PNG pictures in row groups of a thousand; a thousand different ones, over and over."""
    random = np.random.default_rng(0)
    pictures = []
    for _ in range(min(count, BLOCK)):
        # Smooth pictures: their PNG is as small as that of a photograph of this size.
        coarse = random.integers(0, 256, (4, 4, channels), dtype=np.uint8)
        picture = Image.fromarray(coarse[..., 0] if channels == 1 else coarse)
        buffer = io.BytesIO()
        picture.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, format="PNG")
        pictures.append({"bytes": buffer.getvalue(), "path": None})
    schema = pa.schema([("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    block = pa.table({"image": pictures, "label": np.arange(len(pictures)) % 10}, schema=schema)
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, count, BLOCK):
            writer.write_table(block.slice(0, min(BLOCK, count - start)))


def write_npz(path: Path, count: int, channels: int) -> None:
    """Raw pixels, uncompressed."""
    random = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, item, kind in (("images", (channels, SIDE, SIDE), np.uint8), ("labels", (), np.int64)):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                facts = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": (count, *item)}
                np.lib.format.write_array_header_1_0(member, facts)
                for start in range(0, count, BLOCK):
                    rows = min(BLOCK, count - start)
                    member.write(random.integers(0, 10, (rows, *item)).astype(kind).tobytes())


def measure(path: Path, cache: Path, count: int) -> dict[str, float]:
    """Reads and draws in this process; peak resident memory in MB, and seconds."""
    import torch

    from sfumato.data import PrivateImages
    from sfumato.privacy.randomness import Randomness

    start = time.perf_counter()
    private = PrivateImages.read(path, classes=10, cache=cache)
    read = time.perf_counter()
    after_reading = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    randomness, total = Randomness(), 0.0
    for step in range(DRAWS):
        rows = randomness.coins(count, BATCH / count, step).numpy()
        images, labels = private._fetch(rows, torch.device("cpu"))
        total += float(images.mean()) + float(labels.sum())
    return {
        "images": count,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "peak_after_reading_mb": after_reading,
        "reading_seconds": read - start,
        "seconds_per_batch": (time.perf_counter() - read) / DRAWS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--kind", choices=["parquet", "npz"], default="parquet")
    parser.add_argument("--channels", type=int, choices=[1, 3], default=3)
    parser.add_argument("--place", type=Path, default=None, help="where input and cache are kept meanwhile")
    parser.add_argument("--measure", nargs=3, default=None, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        path, cache, count = chosen.measure
        print(json.dumps(measure(Path(path), Path(cache), int(count))))
        return
    peaks = []
    for count in chosen.sizes:
        with tempfile.TemporaryDirectory(dir=chosen.place) as folder:
            path = Path(folder) / f"input.{chosen.kind}"
            (write_parquet if chosen.kind == "parquet" else write_npz)(path, count, chosen.channels)
            command = [sys.executable, __file__, "--measure", str(path), f"{folder}/cache", str(count)]
            result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        peaks.append(result["peak_mb"])
        print(
            f"{count:>10,} images: peak {result['peak_mb']:.0f} MB (reading {result['peak_after_reading_mb']:.0f} MB, "
            f"{result['reading_seconds']:.1f} s; {1000 * result['seconds_per_batch']:.1f} ms a batch)",
            flush=True,
        )
    print(f"largest ÷ smallest peak: {max(peaks) / min(peaks):.3f}")


if __name__ == "__main__":
    main()
