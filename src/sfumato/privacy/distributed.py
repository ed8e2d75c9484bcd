"""Several processes that train one model: which of them this is, and exact sums over all of them.

Every process reads the same collection and draws the same coins and the same noise, from the key of the first one.
Units are dealt to the processes by their ids; each process clips and sums its own. The sums are whole numbers, so
their sum over the processes is exact and does not depend on how many there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

_WHOLE = (torch.int64, torch.int32, torch.uint8)


class RankLost(RuntimeError):
    """Another process of the run has ended, so that this one cannot go on."""


class ProcessesDiffer(ValueError):
    """The processes of a run were not given the same."""


class World:
    """The processes of a run: ``size`` of them, of which this is number ``rank``. One process is a world of its own."""

    def __init__(self, rank: int = 0, size: int = 1, *, device: torch.device | None = None, leads: bool = True) -> None:
        self.rank, self.size = rank, size
        self._device = device or torch.device("cpu")
        self.leads = leads  # the first process of its machine

    @classmethod
    def current(cls) -> World:
        """The processes of torch's process group, where one was set up."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        leads = int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0
        return cls(dist.get_rank(), dist.get_world_size(), device=device, leads=leads)

    @property
    def first(self) -> bool:
        """Whether this process writes the ledger, the checkpoint and the release."""
        return self.rank == 0

    def own(self, ids: np.ndarray) -> np.ndarray:
        """Those of these units, or shards, that belong to this process, always the same ones."""
        return ids if self.size == 1 else ids[ids % self.size == self.rank]

    def all_reduce(self, numbers: Tensor) -> Tensor:
        """The sum over all processes of a tensor of whole numbers, which is exact."""
        if numbers.dtype not in _WHOLE:
            raise TypeError(f"only whole numbers are summed over processes, not {numbers.dtype}: their sum is exact")
        if self.size == 1:
            return numbers
        total = numbers.to(self._device, copy=True)
        self._collective(lambda: dist.all_reduce(total))
        return total.to(numbers.device)

    def broadcast(self, content: bytes) -> bytes:
        """The bytes that the first process gives, in every process."""
        if self.size == 1:
            return content
        length = torch.tensor([len(content)], dtype=torch.int64, device=self._device)
        self._collective(lambda: dist.broadcast(length, src=0))
        buffer = bytearray(content if self.first else int(length))
        if not buffer:
            return b""
        data = torch.frombuffer(buffer, dtype=torch.uint8).to(self._device)
        self._collective(lambda: dist.broadcast(data, src=0))
        return data.cpu().numpy().tobytes()

    def from_first(self, make: Callable[[], Any]) -> Any:
        """What ``make`` returns in the first process, as JSON has it, in every process; if it raises, all end."""
        if self.size == 1:
            return make()
        message = b""
        if self.first:
            try:
                message = json.dumps({"value": make()}).encode()
            except BaseException as error:
                self.broadcast(json.dumps({"error": type(error).__name__}).encode())
                raise
        answer = json.loads(self.broadcast(message))
        if "error" in answer:
            raise RankLost(f"the first process stopped with {answer['error']}; its message says why")
        return answer["value"]

    def check_same(self, content: bytes, refusal: str) -> None:
        """Refuse, in all processes, to go on where one has other bytes than the first; the message says which."""
        differs = torch.zeros(self.size, dtype=torch.int64)
        differs[self.rank] = int(self.broadcast(content) != content)
        found = self.all_reduce(differs).nonzero().flatten().tolist()
        if found:
            raise ProcessesDiffer(f"{refusal} (processes {', '.join(map(str, found))} of 0 to {self.size - 1})")

    def wait(self) -> None:
        """Return when all processes have come here."""
        self.all_reduce(torch.zeros(1, dtype=torch.int64))

    def _collective(self, run: Callable[[], object]) -> None:
        try:
            run()
        except RuntimeError:
            reason = "another process of this run has ended or cannot be reached"
        else:
            return
        raise RankLost(
            f"{reason}: see what it says, or its machine. Give the command again, a training with --resume and any "
            "number of processes; the ledger holds everything that was charged"
        )
