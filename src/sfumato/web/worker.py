"""The process that runs a job: it waits for its turn, runs the commands and writes down what became of them.

It is started by the server in a session of its own and does not need it any more. Locks are held by open files, which
the command inherits: a device stays taken as long as the command runs, whatever happens to the worker.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sfumato.files import write_json
from sfumato.web.jobs import PATIENCE, Job, Process, read_job
from sfumato.web.workspace import read_json

_PAUSE = 0.1


def main() -> None:
    """Run the job in the folder that is the only argument."""
    # A handler, and not "ignore" as a shell may have set it, so that the command starts with the usual reaction.
    signal.signal(signal.SIGINT, lambda *_: None)
    os.umask(0o077)
    folder = Path(sys.argv[1])
    Worker(folder, read_job(folder)).run()


class Worker:
    """Runs one job."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job = folder, job
        self._stop = folder / "stop"
        self._status: dict[str, Any] = {"state": "queued", "worker": Process.of(os.getpid()).to_json()}

    def run(self) -> None:
        """Wait, run, and write the final state whatever happens."""
        self._write()
        locks: list[int] | None = None
        try:
            locks = self._take_locks()
            self._finish("stopped" if locks is None else self._run_commands(locks))
        except BaseException:
            self._finish("failed")
            raise
        for lock in locks or ():
            os.close(lock)

    def _run_commands(self, locks: list[int]) -> str:
        for number, command in enumerate(self.job.commands):
            if self._stop.exists():
                return "stopped"
            if command[0] == "ledger" and not _discarded(Path(command[1])):
                self._log("The collection has a ledger already, whose limit stays.")
                continue
            code = self._run_command(number, command, locks)
            self._status["code"] = code
            if code != 0:
                return "stopped" if self._stop.exists() else "failed"
        return "done"

    def _run_command(self, number: int, command: tuple[str, ...], locks: list[int]) -> int:
        words = [sys.executable, "-m", "sfumato", *command, f"--progress-file={self.folder / 'progress.json'}"]
        with (self.folder / f"output-{number}").open("wb") as output, (self.folder / "log").open("ab") as log:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=log, pass_fds=locks, start_new_session=True
            )
        process = Process.of(child.pid).to_json()
        self._status.pop("code", None)
        self._status.update(state="running", number=number, command=process, since=time.time())
        self._write()
        asked = False
        while (code := child.poll()) is None:
            if not asked and self._stop.exists():
                child.send_signal(signal.SIGINT)
                asked = True
            time.sleep(_PAUSE)
        return code

    def _log(self, text: str) -> None:
        with (self.folder / "log").open("a", encoding="utf-8") as log:
            log.write(text + "\n")

    def _finish(self, state: str) -> None:
        self._status.update(state=state, ended=time.time())
        self._status.pop("command", None)
        self._write()

    def _write(self) -> None:
        write_json(self.folder / "status.json", self._status, private=True)

    def _take_locks(self) -> list[int] | None:
        """Open, locked files, or ``None`` if the job was stopped while it waited. First come, first served."""
        base = self.folder.parent.parent
        ticket = base / "queue" / self.job.id
        facts = {"locks": list(self.job.locks), "worker": self._status["worker"]}
        write_json(ticket, facts, private=True)
        try:
            while not self._stop.exists():
                if not self._is_behind(ticket) and (locks := _locked(base / "locks", self.job.locks)) is not None:
                    return locks
                time.sleep(_PAUSE)
            return None
        finally:
            ticket.unlink(missing_ok=True)

    def _is_behind(self, ticket: Path) -> bool:
        """Whether an earlier job that is alive waits for one of the same locks."""
        for other in ticket.parent.iterdir():
            if other.name >= ticket.name or other.name.startswith("."):
                continue
            facts = read_json(other)
            if facts is not None and set(facts["locks"]) & set(self.job.locks) and _waits(other, facts["worker"]):
                return True
        return False


def _discarded(ledger: Path) -> bool:
    """Whether there is no ledger, or one on which nothing was charged and which is removed."""
    if not ledger.exists():
        return True
    from sfumato.privacy import Ledger  # it loads torch, which the other jobs do not need

    return Ledger.discard_if_unused(ledger)


def _waits(ticket: Path, worker: dict[str, int] | None) -> bool:
    """Whether the owner of a ticket still waits; a worker that has not started yet has some time for it."""
    if worker is not None:
        return Process(**worker).alive
    try:
        return time.time() - ticket.stat().st_mtime < PATIENCE
    except FileNotFoundError:
        return False


def _locked(folder: Path, names: tuple[str, ...]) -> list[int] | None:
    """All of the locks, or none of them."""
    taken: list[int] = []
    for name in names:
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        taken.append(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for one in taken:
                os.close(one)
            return None
    return taken


if __name__ == "__main__":
    main()
