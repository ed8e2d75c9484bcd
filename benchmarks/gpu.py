"""Every measurement of the engine on a GPU, within eight minutes: ``python benchmarks/gradients.py --h200 --out FILE``.

Each measurement is a process with a time limit of its own, so that one that hangs or fails costs no other. What was
found is written after each of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Measurement:
    """A script of this folder with its arguments, the same at tiny size, and the seconds it may take on a GPU."""

    name: str
    script: str
    arguments: str
    rehearsal: str
    seconds: int


_ROWS = "--speed 32:16:512 --speed 32:1:8192 --speed 56:16:256"
_TINY = "--rounds 1 --no-memory --threads 1"
_PEERS = " ".join(
    f"--case {case}"
    for case in ("flow:256", "flow:600", "flow:6000", "discriminator:64", "discriminator:512", "discriminator:2048",
                 "unet:2048", "unet:512x4", "unet:128x16", "unet:64x32")
)  # fmt: skip
MEASUREMENTS = (
    Measurement("draws, eager", "exactness.py", f"--device cuda {_ROWS}", "--speed 8:2:4", 60),
    Measurement("draws, compiled", "exactness.py", f"--device cuda --compile {_ROWS}", "--speed 8:2:4", 130),
    Measurement("trainings", "gpu.py", "--train --device cuda --records 60000", "--train --records 60 --steps 2", 60),
    Measurement(
        "peers",
        "gradients.py",
        f"--device cuda --tf32 --rounds 5 {_PEERS}",
        f"{_TINY} --case flow:4 --case unet:2x2",
        170,
    ),
    Measurement(
        "ten class models",
        "gradients.py",
        "--device cuda --tf32 --case flow:600 --only plain --only ours --classes 600",
        f"{_TINY} --case flow:4 --only plain --only ours --classes 20",
        30,
    ),
    Measurement(
        "where the time goes",
        "gradients.py",
        "--device cuda --tf32 --profile --case unet:128x16 --case flow:600",
        "--threads 1 --profile --case flow:4",
        30,
    ),
)


def run(out: Path | None, *, rehearse: bool) -> None:
    """Carry out the measurements in order and write their results to ``out``."""
    results: list[dict[str, Any]] = []
    for measurement in MEASUREMENTS:
        results.append(_measured(measurement, rehearse=rehearse))
        print(json.dumps({key: results[-1][key] for key in ("name", "seconds", "ended")}), flush=True)
        if out is not None:
            out.write_text(json.dumps({"command": "benchmarks/gradients.py --h200", "measurements": results}, indent=1))


def _measured(measurement: Measurement, *, rehearse: bool) -> dict[str, Any]:
    arguments = (measurement.rehearsal if rehearse else measurement.arguments).split()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, str(HERE / measurement.script), *arguments, "--out", str(out)]
        limit = None if rehearse else measurement.seconds
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
            ended, output = f"exit {done.returncode}", done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            ended, output = f"after {measurement.seconds} s", str(late.stdout or "")
        found = json.loads(out.read_text()) if out.exists() else None
    return {"name": measurement.name, "arguments": " ".join(arguments), "seconds": time.perf_counter() - begun,
            "ended": ended, "found": found, "output": output[-6000:]}  # fmt: skip


def train(records: int, steps: int | None, device: str) -> dict[str, Any]:
    """Seconds of whole trainings on random images: the first, which loads and compiles kernels, and a second one."""
    import numpy as np

    import sfumato as sf

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (records, 28, 28, 1), dtype=np.uint8)
    private = sf.PrivateImages.from_arrays(images, np.arange(records) % 10, classes=10, declared_size=records)
    changes = {} if steps is None else {"steps": steps}
    found: dict[str, Any] = {"records": records}
    for method in (sf.DPLFlow(**changes), sf.DP2VAE(**changes)):
        for start in ("first", "second"):
            begun = time.perf_counter()
            method.fit(private, sf.Budget(epsilon=10, delta=1e-5), device=device)
            found[f"{method.name}, {start} seconds"] = time.perf_counter() - begun
            print(found, flush=True)
    return found


def main() -> None:
    """Called by ``run`` for the trainings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", action="store_true", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = train(given.records, given.steps, given.device)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
