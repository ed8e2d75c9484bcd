"""The process that runs a job: it waits for its turn, runs the commands and writes down what became of them.

It is started by the server in a session of its own and does not need it any more. Locks are held by open files, which
the command inherits: a device stays taken as long as the command runs, whatever happens to the worker.

While a training is under way, ``sfumato preview`` draws samples from its last checkpoint now and then, in a process
with low priority. It reads the checkpoint alone: it costs no privacy, and no private number can be in it.
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

from sfumato.files import write_file, write_json
from sfumato.web import commands
from sfumato.web.jobs import PATIENCE, Job, Process, read_job
from sfumato.web.workspace import read_json

PICTURE = "preview.png"
_RESULT = "preview.json"
_LOOK = 1.0  # seconds between two looks for a new checkpoint
_LEAST = 20.0  # seconds between two previews, at least
_SHARE = 10  # of the time, one part in so many
_LONGEST = 300.0
_WAIT = 0.1
_NOT_YET = "The first samples appear here once the training has saved its first checkpoint."
_TOO_LONG = (
    f"Drawing samples takes longer than {_LONGEST:g} s on this machine; the first ones are those of the release."
)
_FAILED = "No samples could be drawn from the last checkpoint; the training itself is not affected."


def shown(folder: Path) -> dict[str, Any]:
    """What the page of a training shows of its samples: a sentence, and the picture's version and classes if any."""
    found = read_json(folder / _RESULT) or {"note": _NOT_YET}
    if "note" in found or not (folder / PICTURE).is_file():
        return {"note": found.get("note", _NOT_YET), "version": None, "classes": []}
    version = (folder / PICTURE).stat().st_mtime_ns
    note = f"After {found['done']:,} of {found['total']:,} steps of “{found['part']}”, a row for each class."
    return {"note": note, "version": str(version), "classes": found["classes"]}


class Previews:
    """Draws samples of the training in ``run`` into the job's folder: one process at a time, a tenth of the time."""

    def __init__(self, folder: Path, run: Path) -> None:
        self._folder, self._run = folder, run
        self._child: subprocess.Popen[bytes] | None = None
        self._next = self._began = 0.0
        self._seen = 0

    def look(self) -> None:
        """Take over a preview that has ended, or begin one if there is a new checkpoint and it is time."""
        try:
            self._look(time.monotonic())
        except OSError:
            self._next = float("inf")  # a full disk ends the samples, not the training

    def _look(self, now: float) -> None:
        if self._child is not None:
            code = self._child.poll()
            if code is not None:
                self._end(code, now)
            elif now - self._began > _LONGEST:
                self.close()
                self._note(_TOO_LONG)
                self._next = float("inf")
        elif now >= self._next:
            self._next = now + _LOOK
            if (saved := self._saved()) > self._seen:
                self._seen, self._began = saved, now
                self._child = self._start()

    def draw(self) -> None:
        """Draw samples of a training that was stopped, and wait for them; nothing without a checkpoint."""
        self._next = 0.0
        self._seen = 0
        self.look()
        while self._child is not None:
            time.sleep(_WAIT)
            self.look()

    def close(self) -> None:
        """End a preview that is being drawn."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _saved(self) -> int:
        """When the last checkpoint of a part of the training was written; 0 if there is none."""
        files = (self._run / "internal" / "checkpoint").glob("steps *.safetensors")
        times = []
        for path in files:
            try:
                times.append(path.stat().st_mtime_ns)
            except FileNotFoundError:  # the training has ended in between
                continue
        return max(times, default=0)

    def _start(self) -> subprocess.Popen[bytes]:
        words = commands.preview(self._run, self._folder / PICTURE)
        # The GPU, if there is one, belongs to the training.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with (self._folder / f".{_RESULT}").open("wb") as output, (self._folder / "preview.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sfumato", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=_low_priority,
            )

    def _end(self, code: int, now: float) -> None:
        if code == 0:
            result = (self._folder / f".{_RESULT}").read_text(encoding="utf-8")
            write_file(self._folder / _RESULT, result, private=True)
        else:
            self._note(_FAILED)
        self._child = None
        self._next = now + max(_LEAST, (_SHARE - 1) * (now - self._began))

    def _note(self, text: str) -> None:
        write_json(self._folder / _RESULT, {"note": text}, private=True)


def _low_priority() -> None:
    """About a tenth of a core where the training wants all of it."""
    os.nice(10)


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
        training = next((command for command in job.commands if command[0] == "train"), None)
        self._previews = None if training is None else Previews(folder, commands.output_folder(training))
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
            os.close(lock)  # the next job need not wait for the samples
        if self._status["state"] == "stopped" and self._previews is not None:
            self._previews.draw()

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
            if self._previews is not None:
                self._previews.look()
            time.sleep(_PAUSE)
        if self._previews is not None:
            self._previews.close()
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
