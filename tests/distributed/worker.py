"""One process of a group: ``python worker.py TASK FOLDER``, with the environment that ``torchrun`` sets.

Every process writes what it found to ``FOLDER/RANK.json``.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conformance.test_methods import CERTIFIED, budget_for
from gradient_cases import Classifier, make_batch, squared_error
from privacy.test_runs import KillAfter, Killed
from sfumato.audit.replay import replay
from sfumato.methods import Method, find
from sfumato.privacy import Budget, PrivateRecords
from sfumato.privacy.distributed import ProcessesDiffer, RankLost, World
from sfumato.privacy.gradients.engine import GradientSum
from sfumato.release.release import Release
from sfumato.training import distributed
from sfumato.training.checkpoint import FolderCheckpoint
from sfumato.training.distributed import process_group
from worst_case import worst_case_images


def digest(release: Release) -> str:
    """A hash of the bits of every released tensor and of a few samples."""
    found = hashlib.sha256()
    for name, tensor in release.model.state_dict().items():
        found.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    found.update(release.sample(4, seed=1).images.tobytes())
    return found.hexdigest()


def fitted(method: Method, records: PrivateRecords, *, unit: str = "image") -> str:
    return digest(method.fit(records, budget_for(method, unit), seed=5, device="cpu"))


def few(count: int) -> PrivateRecords:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    return PrivateRecords(pixels, np.arange(count) % 2, classes=("a", "b"))


def every_method(world: World) -> dict[str, Any]:
    """Every certified method on images, and one on persons."""
    found = {}
    for name, variant in CERTIFIED:
        found[f"{name} {variant}"] = fitted(find(name).small(variant), worst_case_images())
        print(world.rank, name, variant, found[f"{name} {variant}"], flush=True)  # shown where the test fails
    found["persons"] = fitted(find("dp-vae").small(), worst_case_images(persons=True), unit="person")
    return found


def small_cases(world: World) -> dict[str, Any]:
    """Few records: with four processes at least one has none, and most batches are empty."""
    method = find("dp-vae").small()
    rare = type(method)(**{**method.parameters(), "sampling_rate": 1e-6})
    return {
        "three records": fitted(method, few(3)),
        "nobody": fitted(method, few(0)),
        "no coin comes up": fitted(rare, few(40)),
        "features": fitted(find("dp-merf").small(), few(20)),
    }


def audit(world: World) -> dict[str, Any]:
    """Neighbour replay: queries, ledger, released bits and samples of neighbours are equal, and sums move by one."""
    found: dict[str, Any] = {}
    for name in ("dp-vae", "dp2-vae"):  # the second has private state
        method = find(name).small()
        replayed = replay(method, worst_case_images(), budget=budget_for(method), pairs=3)
        # The ledger is in the first process, so only that one can compare it.
        found[name] = replayed.to_json() if world.first else None
    return {**found, "wrong movements": wrong_movements(world)}


def wrong_movements(world: World) -> list[int]:
    """Units whose removal moves the sum over all processes by anything but their own vector, in whole numbers."""
    torch.manual_seed(0)
    model, batch = Classifier(), make_batch(7, dtype=torch.float32)

    def total(units: list[int]) -> torch.Tensor:
        exact = GradientSum(model, squared_error, 0.1, expected_units=7)
        exact.add(batch.select(torch.from_numpy(world.own(np.array(units, dtype=np.int64)))))
        high, low = world.all_reduce(exact.limbs())
        return (high << 32) + low  # few units: it fits

    everybody = total(list(range(7)))
    assert everybody.any()
    alone = {unit: total([unit]) for unit in range(7)}
    without = {unit: total([other for other in range(7) if other != unit]) for unit in range(7)}
    return [unit for unit in range(7) if not torch.equal(everybody - without[unit], alone[unit])]


def with_state(**options: Any) -> str:
    """DP²-VAE, whose records have private state, in a run that is saved after every step."""
    small = find("dp2-vae").small()
    method = type(small)(**{**small.parameters(), "steps": 6})
    run = Path(sys.argv[2]).parent / "run"
    checkpoint = FolderCheckpoint(run / "checkpoint", seconds=0.0)
    ledger = run / "ledger.jsonl"
    images, budget = worst_case_images(), budget_for(method)
    return digest(method.fit(images, budget, ledger, checkpoint=checkpoint, seed=5, device="cpu", **options))


def whole(world: World) -> dict[str, Any]:
    """A run, or the rest of one."""
    return {"with state": with_state()}


def interrupted(world: World) -> dict[str, Any]:
    """A run that ends after three of six steps: in the first process, and so in all of them."""
    try:
        return {"ended": with_state(progress=KillAfter(3, "training"))}
    except (Killed, RankLost) as error:
        return {"ended": type(error).__name__}


def disagreement(world: World) -> dict[str, Any]:
    """What each process says when the last one has one record less, other pixels, or another budget."""
    method, last = find("dp-merf").small(), world.rank == world.size - 1
    other_pixels = few(20)
    if last:
        other_pixels._pixels[7, 0, 3, 3] ^= 1
    given = {
        "one less": (few(19 if last else 20), budget_for(method)),
        "other pixels": (other_pixels, budget_for(method)),
        "another budget": (few(20), Budget(3.0, 1e-6 if last else 1e-5)),
    }
    found = {}
    for name, (records, budget) in given.items():
        ledger = Path(sys.argv[2]) / f"{name}.jsonl"
        try:
            method.fit(records, budget, ledger, device="cpu")
            found[name] = "trained"
        except ProcessesDiffer as error:
            found[name] = str(error)
        found[name] += " and charged" * ledger.exists()
    return found


def in_turn(world: World) -> dict[str, Any]:
    """The first process goes on only when the others have seen exchanges meanwhile, as in a reading of hours."""
    exchanged = Path(sys.argv[2]) / "exchanged"
    called: list[int] = []
    all_reduce = world.all_reduce

    def counted(numbers: torch.Tensor) -> torch.Tensor:
        total = all_reduce(numbers)
        called.append(int(total))
        if not world.first and called[:2] == [1, 1]:
            exchanged.touch()
        return total

    def make() -> str:
        end = time.monotonic() + 600  # it would wait for ever if there were no exchanges
        while world.first and not exchanged.exists():
            if time.monotonic() > end:
                raise TimeoutError("no exchange while this process is busy")
            time.sleep(0.02)
        return f"made by {world.rank}"

    world.all_reduce = counted  # type: ignore[method-assign]
    return {"made": distributed.in_turn(world, make)}


TASKS: dict[str, Callable[[World], dict[str, Any]]] = {
    "every-method": every_method,
    "small-cases": small_cases,
    "audit": audit,
    "whole": whole,
    "interrupted": interrupted,
    "disagreement": disagreement,
    "in-turn": in_turn,
}


def main() -> None:
    torch.set_num_threads(1)
    task, folder = sys.argv[1:]
    with process_group("cpu") as (world, _):
        found = TASKS[task](world)
        (Path(folder) / f"{world.rank}.json").write_text(json.dumps(found))
    # A thread of gloo that is left when the interpreter shuts down aborts the process now and then.
    names = [(thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    if left := [name for name in names if name.startswith(("gloo", "pt_gloo", "pt_tcpstore"))]:
        sys.exit(f"threads that outlive the process group: {', '.join(sorted(left))}")


if __name__ == "__main__":
    main()
