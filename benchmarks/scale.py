"""What several processes gain and cost: coins, noise, the exchange of sums, and training in one process and in two.

    python benchmarks/scale.py coins noise exchange training --out docs/results/scale.json
    python benchmarks/scale.py coins noise exchange training --rehearse

Needs two quiet cores. ``training`` compares a step of one process with a step of two, one thread each, and with two
processes that know nothing of each other: what those reach is what the machine allows, whose cores share memory and
cache. The three are repeated in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.experiments.results import current_commit
from sfumato.methods import find
from sfumato.privacy import NoGuarantee, PrivateRecords
from sfumato.privacy.distributed import World
from sfumato.privacy.randomness import Randomness
from sfumato.training.distributed import process_group

SHAPE = (1, 28, 28)
METHOD = "dp-vae"


def median(work: Callable[[int], object], repeats: int) -> float:
    """Seconds of one call, which is given its number."""
    found = []
    for number in range(repeats):
        begun = time.perf_counter()
        work(number)
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def coins(folder: Path, *, rehearse: bool) -> dict[str, Any]:
    """Seconds to draw a batch from ten thousand to a billion ids."""
    cases = [(10**4, 512), (10**6, 512), (10**7, 512), (10**8, 512), (10**9, 512), (10**9, 65_536)]
    return {f"{batch} of {units}": median(_coins_of(units, batch), 5 if rehearse else 200) for units, batch in cases}


def _coins_of(units: int, batch: int) -> Callable[[int], object]:
    randomness = Randomness(0)
    return lambda step: randomness.coins(units, batch / units, "bench", step)


def noise(folder: Path, *, rehearse: bool) -> dict[str, Any]:
    """Seconds to draw the noise of a million parameters, on one thread."""
    torch.set_num_threads(1)
    randomness, parameters = Randomness(0), 10**6
    seconds = median(lambda step: randomness.gaussian(parameters, torch.device("cpu"), "n", step), 2 if rehearse else 9)
    return {"parameters": parameters, "seconds": seconds}


def exchange(folder: Path, *, rehearse: bool) -> dict[str, Any]:
    """Seconds to add the sums of a million parameters over two processes of this machine (gloo)."""
    return _launched("exchange-worker", 2, folder / "exchange.json", rehearse=rehearse)


def exchange_worker(world: World, *, rehearse: bool) -> dict[str, Any]:
    parameters = 10**6
    limbs = torch.ones(2, parameters, dtype=torch.int64)
    world.all_reduce(limbs)
    seconds = median(lambda number: world.all_reduce(limbs), 3 if rehearse else 30)
    return {"parameters": parameters, "bytes": 16 * parameters, "seconds": seconds}


def training(folder: Path, *, rehearse: bool) -> dict[str, Any]:
    """Seconds of a step: alone, two processes together, and two that know nothing of each other."""
    rounds: dict[str, list[float]] = {"one": [], "two": [], "apart": []}
    facts: dict[str, Any] = {}
    for number in range(1 if rehearse else 3):
        for kind, found in rounds.items():
            out = folder / f"{kind}-{number}.json"
            # Processes that know nothing of each other are a launch each.
            other = _launch("training-worker", 1, folder / "other.json", rehearse=rehearse) if kind == "apart" else None
            facts = _launched("training-worker", 2 if kind == "two" else 1, out, rehearse=rehearse)
            if other is not None and other.wait():
                raise RuntimeError("a training failed")
            found.append(facts.pop("seconds_per_step"))
            print(kind, found[-1], flush=True)
    steps = {kind: statistics.median(found) for kind, found in rounds.items()}
    return {
        **facts,
        "rounds": rounds,
        "seconds_per_step": steps,
        "speed_up": steps["one"] / steps["two"],
        "speed_up_of_the_machine": 2 * steps["one"] / steps["apart"],
    }


def training_worker(world: World, *, rehearse: bool) -> dict[str, Any]:
    """The median of the steps after the first two, which compare the gradients with a loop."""
    torch.set_num_threads(1)
    batch, steps = (512, 4) if rehearse else (8192, 8)
    count = 10 * batch
    pixels = np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    records = PrivateRecords(pixels, np.arange(count) % 10, classes=tuple("0123456789"), declared_size=count)
    method = find(METHOD)(steps=steps, sampling_rate=batch / count)  # type: ignore[call-arg]
    marks: list[float] = []

    class Watch:
        """Notes when steps end."""

        def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
            marks.append(time.perf_counter())

    release = method.fit(records, NoGuarantee(), device="cpu", progress=Watch(), seed=0)
    if not world.first:
        return {}  # progress is reported to the first process
    parameters = sum(tensor.numel() for tensor in release.model.state_dict().values())
    seconds = statistics.median(np.diff(marks[2:]).tolist())
    return {"method": METHOD, "batch": batch, "steps": steps, "parameters": parameters, "seconds_per_step": seconds}


def _launch(task: str, size: int, out: Path, *, rehearse: bool) -> subprocess.Popen[bytes]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    words = [sys.executable, *launch, __file__, task, "--out", str(out), *["--rehearse"] * rehearse]
    return subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _launched(task: str, size: int, out: Path, *, rehearse: bool) -> dict[str, Any]:
    if _launch(task, size, out, rehearse=rehearse).wait():
        raise RuntimeError(f"{task} failed")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


PARTS = {"coins": coins, "noise": noise, "exchange": exchange, "training": training}
WORKERS = {"exchange-worker": exchange_worker, "training-worker": training_worker}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=[*PARTS, *WORKERS])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="small sizes, to see that everything runs")
    chosen = parser.parse_args()
    if chosen.parts[0] in WORKERS:
        with process_group("cpu") as (world, _):
            measured = WORKERS[chosen.parts[0]](world, rehearse=chosen.rehearse)
            if world.first:
                chosen.out.write_text(json.dumps(measured))
        return
    found: dict[str, Any] = {"command": f"python benchmarks/scale.py {' '.join(chosen.parts)}"}
    found |= {"load_before": os.getloadavg()[0], "cores": os.cpu_count()}
    found |= {"python": platform.python_version(), "torch": torch.__version__, "commit": current_commit()}
    for part in chosen.parts:
        with tempfile.TemporaryDirectory() as folder:
            found[part] = PARTS[part](Path(folder), rehearse=chosen.rehearse)
        print(part, json.dumps(found[part], indent=1), flush=True)
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
