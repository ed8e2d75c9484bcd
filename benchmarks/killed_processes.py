"""Kills one of three processes of a training with SIGKILL at random moments, then resumes with two of them.

    python benchmarks/killed_processes.py --kills 20 --out docs/results/killed-ranks.json
    python benchmarks/killed_processes.py --kills 1

``torchrun`` starts the processes, as on a cluster. A run has three phases, as long as a first run that is not killed
shows: the start, before the first charge; the steps, each of which is charged; and the end, after the last charge. Most
kills fall among the steps: when the ledger holds a random number of charges, and a random part of a step later. The
others fall at a random time of the start or of the end. For every kill the result says how long the other processes
took to end, how many steps were on the ledger then, and what the release states.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfumato.experiments.results import current_commit
from sfumato.methods.registry import load
from sfumato.privacy import Ledger

STEPS, EPSILON, PROCESSES = 40, 3.0, 3
LONGEST = 120.0  # seconds after which processes that have not ended are taken to hang


def start(data: Path, out: Path, size: int, *, resume: bool) -> subprocess.Popen[bytes]:
    """``torchrun`` with a small training."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "0", "--nproc-per-node", str(size)]
    method = ["--method", "dp-vae", "--set", f"steps={STEPS}", "--set", "width=8", "--device", "cpu"]
    budget = ["--epsilon", str(EPSILON), "--delta", "1e-5", "--classes", "2", "--declared-size", "400"]
    words = ["-m", "sfumato", "train", str(data), *method, *budget, "--out", str(out), *["--resume"] * resume]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *launch, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def ranks(launcher: subprocess.Popen[bytes], size: int) -> list[int]:
    """The process ids of the ranks, as soon as all of them have started; none if the launcher has ended."""
    while launcher.poll() is None:
        found = {}
        for children in Path(f"/proc/{launcher.pid}/task").glob("*/children"):
            for process in children.read_text().split():
                if (rank := _rank(process)) is not None:
                    found[rank] = int(process)
        if len(found) == size:
            return [found[rank] for rank in range(size)]
        time.sleep(0.01)
    return []


def _rank(process: str) -> int | None:
    try:
        words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(word[5:]) for word in words if word.startswith(b"RANK=")), None)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(launcher: subprocess.Popen[bytes], processes: list[int]) -> float | None:
    """Seconds until all processes have ended, the launcher apart; None if they hang."""
    begun, found = time.monotonic(), None
    while found is None and time.monotonic() < begun + LONGEST:
        if not any(alive(process) for process in processes):
            found = time.monotonic() - begun
        time.sleep(0.01)
    for process in processes:
        if alive(process):
            os.kill(process, signal.SIGKILL)
    launcher.wait()
    return found


def charges(ledger: Path) -> int:
    """Charges on a ledger that another process is writing."""
    try:
        return ledger.read_bytes().count(b'"kind": "charge"')
    except FileNotFoundError:
        return 0


@dataclass(frozen=True)
class WholeRun:
    """Seconds from the start of the processes to the first charge, to the last one and to the end, of a run."""

    first_charge: float
    last_charge: float
    end: float
    charges: int

    @classmethod
    def watched(cls, data: Path, out: Path) -> WholeRun:
        """Of a run that is not killed."""
        launcher = start(data, out, PROCESSES, resume=False)
        processes = ranks(launcher, PROCESSES)
        begun, times, count = time.monotonic(), [0.0], 0
        while any(alive(process) for process in processes):
            if (now := charges(out / "ledger.jsonl")) > count:
                times += [time.monotonic() - begun] * (now - count)
                count = now
            time.sleep(0.002)
        end = time.monotonic() - begun
        if launcher.wait() or not count:
            raise RuntimeError("the run that nobody kills has failed")
        return cls(times[1], times[-1], end, count)

    @property
    def step(self) -> float:
        """Seconds between two charges."""
        return (self.last_charge - self.first_charge) / max(1, self.charges - 1)


@dataclass(frozen=True)
class Moment:
    """A kill: when the ledger holds ``after`` charges, and ``delay`` seconds later."""

    phase: str
    after: int
    delay: float
    victim: int

    @classmethod
    def drawn(cls, phase: str, whole: WholeRun, chance: random.Random) -> Moment:
        """A random moment of this phase, and a random process."""
        victim = chance.randrange(PROCESSES)
        if phase == "start":
            return cls(phase, 0, chance.uniform(0.0, whole.first_charge), victim)
        if phase == "steps":
            return cls(phase, chance.randrange(1, whole.charges), chance.uniform(0.0, whole.step), victim)
        return cls(phase, whole.charges, chance.uniform(0.0, whole.end - whole.last_charge), victim)

    def wait_for(self, launcher: subprocess.Popen[bytes], ledger: Path) -> None:
        """Return at this moment, or if the run ends or hangs before it."""
        end = time.monotonic() + LONGEST
        while charges(ledger) < self.after and launcher.poll() is None and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(self.delay)


def phases(kills: int, chance: random.Random) -> list[str]:
    """The phase of each kill, in random order: seven of ten among the steps."""
    steps = round(0.7 * kills)
    found = ["steps"] * steps + ["start", "end"] * (kills - steps)
    found = found[:kills]
    chance.shuffle(found)
    return found


def one_kill(folder: Path, data: Path, moment: Moment) -> dict[str, Any]:
    """Kill, look at the ledger, resume with one process fewer, and look at the release."""
    out = folder / "run"
    ledger = out / "ledger.jsonl"
    launcher = start(data, out, PROCESSES, resume=False)
    processes = ranks(launcher, PROCESSES)
    moment.wait_for(launcher, ledger)
    if alive(processes[moment.victim]):
        os.kill(processes[moment.victim], signal.SIGKILL)
    seconds = ended(launcher, processes)
    found: dict[str, Any] = {"moment": asdict(moment), "seconds_to_the_end_of_all": seconds}
    before = Ledger.read(ledger) if ledger.exists() else None  # raises if it is damaged
    found["charged_steps"] = 0 if before is None else sum(event.steps for event in before.events())  # type: ignore[union-attr]
    found["finished_before_the_kill"] = (out / "release" / "card.json").exists()
    if not found["finished_before_the_kill"]:
        # A run that had spent nothing when it was interrupted begins again.
        again = start(data, out, PROCESSES - 1, resume=(out / "internal" / "run.json").exists())
        resumed = again.wait()
    else:
        resumed = 0
    card, after = load(out / "release").card, Ledger.read(ledger)
    checks = {
        "all processes ended": seconds is not None,
        "resumed with one process fewer": resumed == 0,
        "nothing was lost from the ledger": before is None or after.holds(*before.head),
        "certified within the budget": card.guarantee == "certified" and card.epsilon <= EPSILON,
        "planned number of steps": sum(event.steps for event in card.events if event.name == "training") == STEPS,
        "card and ledger agree": tuple(card.events) == tuple(after.events(card.run)),
    }
    return {**found, "epsilon": card.epsilon, "checks": checks, "passed": all(checks.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    chance = random.Random(0)
    found: dict[str, Any] = {"command": f"python benchmarks/killed_processes.py --kills {arguments.kills}"}
    found |= {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__}
    found |= {"commit": current_commit(), "processes": PROCESSES, "epsilon": EPSILON, "steps": STEPS, "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        images = np.random.default_rng(0).integers(0, 256, (400, 28, 28), dtype=np.uint8)
        np.savez(data, images=images, labels=np.arange(400) % 2)
        whole = WholeRun.watched(data, Path(folder) / "whole")
        found["whole_run"] = asdict(whole)
        for number, phase in enumerate(phases(arguments.kills, chance)):
            place = Path(folder) / str(number)
            place.mkdir()
            found["runs"].append(one_kill(place, data, Moment.drawn(phase, whole, chance)))
            print(json.dumps(found["runs"][-1]), flush=True)
            found["kills"] = len(found["runs"])
            found["passed"] = sum(kill["passed"] for kill in found["runs"])
            if arguments.out:
                arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{found['passed']} of {found['kills']} passed")


if __name__ == "__main__":
    main()
