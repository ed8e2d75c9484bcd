"""What a training of DP-Mixture takes as the collection grows, and what a second process leaves to each.

    python benchmarks/mixture.py --out docs/results/mixture-scale.json

Drawn digits of 28×28 are written to a file and read from it; ten thousand different ones, over and over. Each training
is in processes of its own, on one thread each. There is no alignment and no teacher, which cost most and look at one
image at a time, and there are at most eight centres. Processor seconds are compared, which leave out what other work on
the machine takes; of two processes those of the busier one count. Runs are seeded, so that the releases of one process
and of two can be compared bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.data import PrivateImages
from sfumato.data.digits import draw_digits
from sfumato.experiments.results import current_commit
from sfumato.files import write_json
from sfumato.methods import find
from sfumato.privacy import Budget
from sfumato.training.distributed import process_group
from sfumato.training.profiling import peak_memory

DIFFERENT = 10_000


def write_digits(path: Path, count: int) -> None:
    """An uncompressed npz of drawn digits, written block by block."""
    digits = draw_digits(min(count, DIFFERENT), seed=0)
    columns = {"images": digits.pixels, "labels": digits.labels.astype(np.int64)}
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, block in columns.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                facts = {"descr": block.dtype.str, "fortran_order": False, "shape": (count, *block.shape[1:])}
                np.lib.format.write_array_header_1_0(member, facts)
                for start in range(0, count, len(block)):
                    member.write(block[: count - start].tobytes())


def worker(path: Path, out: Path) -> None:
    """Train in this process, or in all that ``torch.distributed.run`` started; each writes what it took."""
    torch.set_num_threads(1)
    with process_group("cpu") as (world, _):
        private = PrivateImages.read(path, classes=10, cache=path.parent / "cache")
        method = find("dp-mixture").configured({"alignment": False, "centres": 8, "teacher_share": 0})
        world.wait()
        began = time.process_time()
        release = method.fit(private, Budget(1.0, 1e-6), device="cpu", seed=0)
        seconds = time.process_time() - began
    state = release.model.state_dict()
    digest = hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()
    found = {"processor_seconds": seconds, "peak_memory": peak_memory(), "release": digest}
    write_json(out / f"{world.rank}.json", found, private=False)


def trained(count: int, processes: int) -> dict[str, Any]:
    """A training on this many images; the busiest process counts."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "digits.npz", Path(folder) / "out"
        out.mkdir()
        write_digits(path, count)
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [sys.executable, *launch, __file__, "--worker", str(path), str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        each = [json.loads(file.read_text()) for file in sorted(out.iterdir())]
    assert len(each) == processes
    assert len({one["release"] for one in each}) == 1
    busiest = {key: max(one[key] for one in each) for key in ("processor_seconds", "peak_memory")}
    row = {"images": count, "processes": processes, **busiest, "release": each[0]["release"]}
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--divided", type=int, default=100_000, help="images of the training in two processes")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(*chosen.worker)
        return
    rows = [trained(count, 1) for count in chosen.sizes]
    one = next((row for row in rows if row["images"] == chosen.divided), None) or trained(chosen.divided, 1)
    two = trained(chosen.divided, 2)
    first, last = rows[0], rows[-1]
    found = {
        "command": "python benchmarks/mixture.py",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": current_commit(),
        "trainings": [*rows, two],
        "memory": last["peak_memory"] / first["peak_memory"],
        "time_per_image": (last["processor_seconds"] / last["images"]) / (first["processor_seconds"] / first["images"]),
        "speed_up_of_two": one["processor_seconds"] / two["processor_seconds"],
        "same_bits": one["release"] == two["release"],
    }
    print(json.dumps(found, indent=1))
    if chosen.out:
        write_json(chosen.out, found, private=False)


if __name__ == "__main__":
    main()
