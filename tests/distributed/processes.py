"""Starts groups of processes as ``torchrun`` does, on this machine, over gloo."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

TESTS = Path(__file__).parent.parent
_PATIENCE = 1800  # seconds until a group counts as hanging


_taken: list[TextIO] = []


def free_port() -> int:
    """A port that nobody uses, below those that the kernel gives to whoever connects before the group listens on it.

    A lock keeps it from other groups of tests until this process ends.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(max(2048, first) - 1, 1024, -1):
        lock = (Path(tempfile.gettempdir()) / f"sfumato-test-port-{port}").open("w")
        with socket.socket() as listener, contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listener.bind(("127.0.0.1", port))
            _taken.append(lock)
            return port
        lock.close()
    raise OSError("no port is free")


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    import sfumato

    source = str(Path(sfumato.__file__).parent.parent)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([source, str(TESTS)]),
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(command: list[str], size: int) -> list[subprocess.Popen[str]]:
    """This command in ``size`` processes that find each other."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment(rank, size, port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit status and output of each."""
    try:
        return [(process.wait(_PATIENCE), process.communicate()[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()


def run_task(task: str, size: int, folder: Path) -> list[dict[str, Any]]:
    """What each of ``size`` processes finds for a task of ``worker``."""
    folder.mkdir(parents=True)
    worker = str(Path(__file__).with_name("worker.py"))
    for status, output in finish(start([worker, task, str(folder)], size)):
        assert status == 0, output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]
