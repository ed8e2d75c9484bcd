"""What a training costs in seconds and memory, measured in the process that does it."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from sfumato.files import write_json


class Cost:
    """Starts its watch when it is made; ``so_far`` is what ``internal/cost.json`` keeps."""

    def __init__(self, device: str | torch.device, *, resumed: bool) -> None:
        self.device = torch.device(device)
        self.resumed = resumed
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._began, self._worked = time.perf_counter(), time.process_time()

    def so_far(self) -> dict[str, Any]:
        on_device = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            on_device = torch.cuda.max_memory_allocated(self.device)
        return {
            "seconds": time.perf_counter() - self._began,
            # Of all threads together: on a machine with other work it says more than the time that passed.
            "processor_seconds": time.process_time() - self._worked,
            "peak_memory": peak_memory(),
            "peak_device_memory": on_device,
            "device": self.device.type,
            "threads": torch.get_num_threads(),
            "resumed": self.resumed,
        }

    def keep(self, internal: Path) -> None:
        """For the internal report."""
        write_json(internal / "cost.json", self.so_far(), private=True)


def peak_memory() -> int:
    """The most bytes this process has held at a time, libraries included."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Unlike getrusage, this is not inherited from the process that started us.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
