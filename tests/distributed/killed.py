"""``python killed.py RANK MOMENT STEP train …``: ``sfumato train …``, of which one process is killed in a step.

``MOMENT`` is "noise" (the step is charged and its noise about to be drawn) or "exchange" (the others wait for sums).
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import torch

from sfumato.cli.main import main
from sfumato.privacy import Randomness
from sfumato.privacy.distributed import World

_EVENT = "training"


def kill_at(moment: str, step: int) -> None:
    """Replace the function in which this process is to end."""
    coins, gaussian, all_reduce = Randomness.coins, Randomness.gaussian, World.all_reduce
    sampled: list[tuple[Any, ...]] = []

    def watched_coins(self: Randomness, count: int, rate: float, *label: str | int) -> torch.Tensor:
        sampled.append(label)
        return coins(self, count, rate, *label)

    def watched_gaussian(self: Randomness, count: int, device: torch.device, *label: str | int) -> torch.Tensor:
        if moment == "noise" and label[:2] == (_EVENT, step):
            os.kill(os.getpid(), signal.SIGKILL)
        return gaussian(self, count, device, *label)

    def watched_all_reduce(self: World, numbers: torch.Tensor) -> torch.Tensor:
        if moment == "exchange" and (_EVENT, step) in [label[:2] for label in sampled]:
            os.kill(os.getpid(), signal.SIGKILL)
        return all_reduce(self, numbers)

    Randomness.coins, Randomness.gaussian = watched_coins, watched_gaussian  # type: ignore[method-assign]
    World.all_reduce = watched_all_reduce  # type: ignore[method-assign]


if __name__ == "__main__":
    rank, moment, step = sys.argv[1:4]
    if os.environ["RANK"] == rank:
        kill_at(moment, int(step))
    sys.argv[1:4] = []
    main()
