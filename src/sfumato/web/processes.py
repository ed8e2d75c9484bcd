"""Which process is meant by a number: its start time tells it apart from a later process of the same number."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process of this machine."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this number now."""
        return cls(pid, _start(pid) or 0)

    @property
    def alive(self) -> bool:
        """Whether it still runs; a process that has ended and waits for its parent does not."""
        return self.pid > 0 and _start(self.pid) == self.started

    def to_json(self) -> dict[str, int]:
        return {"pid": self.pid, "started": self.started}


def _start(pid: int) -> int | None:
    """The start time in clock ticks; 0 where the system has no /proc, ``None`` where there is no such process."""
    if not Path("/proc/self/stat").exists():
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, PermissionError):
            return None
        return 0
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
