"""Kills one of three processes of a training at random moments, then resumes with two and checks the ledger.

    python benchmarks/killed_processes.py --kills 20 --out docs/results/killed-processes.json

A moment is a random number of seconds after the start, from 0 to what a whole run takes. For every kill the result says
how long the other processes took to end, how many steps were on the ledger then, and what the release states.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.methods.registry import load
from sfumato.privacy import Ledger

STEPS, EPSILON = 40, 3.0


def start(command: list[str], size: int) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    size_words = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **address, **size_words, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(size)
    ]


def command(data: Path, out: Path, *, resume: bool) -> list[str]:
    method = ["--method", "dp-vae", "--set", f"steps={STEPS}", "--set", "width=8", "--device", "cpu"]
    budget = ["--epsilon", str(EPSILON), "--delta", "1e-5", "--classes", "2", "--declared-size", "400"]
    return ["-m", "sfumato", "train", str(data), *method, *budget, "--out", str(out), *["--resume"] * resume]


def one_kill(folder: Path, data: Path, moment: float, victim: int) -> dict[str, Any]:
    out = folder / "run"
    processes = start(command(data, out, resume=False), 3)
    time.sleep(moment)
    killed_at = time.monotonic()
    processes[victim].send_signal(signal.SIGKILL)
    finished = [process.wait() for process in processes]
    ended = time.monotonic() - killed_at
    ledger = out / "ledger.jsonl"
    charged = sum(event.steps for event in Ledger.read(ledger).events()) if ledger.exists() else 0  # type: ignore[union-attr]
    found = {"moment": moment, "victim": victim, "seconds_to_the_end_of_all": ended, "charged_steps": charged}
    if (out / "release").exists():  # killed when everything was written
        resumed = [0]
    else:
        # A run that had spent nothing when it was interrupted leaves no folder, and begins again.
        begun = (out / "internal" / "run.json").exists()
        resumed = [process.wait() for process in start(command(data, out, resume=begun), 2)]
    release = load(out / "release")
    events = Ledger.read(ledger).events()
    checks = {
        "all processes ended": all(status != 0 for status in finished) or (out / "release").exists(),
        "resumed with two": all(status == 0 for status in resumed),
        "certified": release.card.guarantee == "certified" and release.card.epsilon <= EPSILON,
        "planned steps": sum(event.steps for event in events) == STEPS,  # type: ignore[union-attr]
        "card and ledger agree": tuple(release.card.events) == tuple(events),
    }
    return {**found, "epsilon": release.card.epsilon, "checks": checks, "passed": all(checks.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(data, images=rng.integers(0, 256, (400, 28, 28), dtype=np.uint8), labels=np.arange(400) % 2)
        begun = time.monotonic()
        for process in start(command(data, Path(folder) / "whole", resume=False), 3):
            process.wait()
        whole = time.monotonic() - begun
        kills = []
        for number in range(arguments.kills):
            place = Path(folder) / str(number)
            place.mkdir()
            kills.append(one_kill(place, data, chance.uniform(0.0, whole), chance.randrange(3)))
            print(json.dumps(kills[-1]), flush=True)
    passed = sum(kill["passed"] for kill in kills)
    print(f"{passed} of {len(kills)} passed")
    if arguments.out:
        found = {"kills": len(kills), "passed": passed, "seconds_of_a_whole_run": whole, "runs": kills}
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
