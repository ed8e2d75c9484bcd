"""Jobs on disk: the commands that the page runs, each in a folder of its own, and what has become of them.

A job is run by a process that outlives the server (``sfumato.web.worker``). The server reads its folder and never
needs to remember anything:

``job.json``      what was asked; never changed
``status.json``   what the worker has come to
``progress.json`` public numbers of the running command
``log``           what the commands wrote to standard error; ``output-0`` … to standard output
``stop``          exists once someone asked to stop
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, Unpack

from sfumato.files import private_folder, write_json
from sfumato.web.workspace import NotThere, Refused, Workspace, read_json


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


ACTIVE = ("queued", "running")
FINAL = ("done", "failed", "stopped", "interrupted")
PATIENCE = 300.0
"""Seconds in which a worker must have started."""


@dataclass(frozen=True)
class Job:
    """What was asked.

    Attributes:
        id: The name of the folder; later jobs have later names.
        kind: inspect, plan, train, review, audit or export.
        title: One line for people.
        commands: Arguments of ``sfumato``, run one after the other.
        locks: What must be free before it runs: a device, a ledger.
        collection: The name of the collection.
        run: The name of the run, if the job is about one.
        choices: What was chosen in the form, for the pages that follow.
        next: The address of the page that shows the result.
        made: When it was asked.
    """

    id: str
    kind: str
    title: str
    commands: tuple[tuple[str, ...], ...]
    locks: tuple[str, ...] = ()
    collection: str | None = None
    run: str | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    next: str = "/"
    made: str = ""

    @property
    def when(self) -> str:
        """When it was asked, in the time of this machine, as people read it."""
        return f"{datetime.fromisoformat(self.made).astimezone():%d %B %Y, %H:%M}".lstrip("0") if self.made else ""

    @property
    def command_lines(self) -> list[str]:
        """What does the same in a terminal."""
        return [shlex.join(["sfumato", *arguments]) for arguments in self.commands]


class Facts(TypedDict, total=False):
    """What a job may be given besides its commands."""

    locks: Sequence[str]
    collection: str | None
    run: str | None
    choices: Mapping[str, Any] | None
    next: str


class Jobs:
    """All jobs of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._workers: list[subprocess.Popen[bytes]] = []

    def folder(self, job: str) -> Path:
        return self.workspace.named("jobs", job)

    def start(self, kind: str, title: str, commands: Sequence[Sequence[str]], **facts: Unpack[Facts]) -> Job:
        """Write a job down and start its worker, a process of its own that does not end with the server."""
        job = self._write(kind, title, commands, "queued", facts)
        # The place in the queue is taken now, and not when the worker has started, which may take its time.
        ticket = {"locks": list(job.locks), "worker": None}
        write_json(self.workspace.folder / "queue" / job.id, ticket, private=True)
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        self._workers.append(
            subprocess.Popen(
                [sys.executable, "-m", "sfumato.web.worker", str(self.folder(job.id))],
                cwd=self.workspace.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
        return job

    def record(
        self, kind: str, title: str, commands: Sequence[Sequence[str]], output: Any, **facts: Unpack[Facts]
    ) -> Job:
        """Write down a job that was done at once, with its result."""
        job = self._write(kind, title, commands, "done", facts)
        write_json(self.folder(job.id) / "output-0", output, private=True)
        return job

    def _write(self, kind: str, title: str, commands: Sequence[Sequence[str]], state: str, facts: Facts) -> Job:
        now = datetime.now(UTC)
        name = f"{now:%Y%m%d-%H%M%S-%f}-{kind}-{secrets.token_hex(2)}"
        values = {
            **facts,
            "locks": sorted(facts.get("locks", ())),
            "choices": facts.get("choices") or {},
            "next": facts.get("next", "/").replace("{job}", name),
        }
        made = now.isoformat(timespec="seconds")
        job = _from_json({"id": name, "kind": kind, "title": title, "commands": commands, "made": made, **values})
        folder = private_folder(self.folder(name))
        write_json(folder / "status.json", {"state": state}, private=True)
        write_json(folder / "job.json", asdict(job), private=True)
        return job

    def find(self, job: str) -> Job:
        return read_job(self.folder(job))

    def all(self) -> list[Job]:
        """All jobs, the latest first."""
        names = sorted((path.name for path in (self.workspace.folder / "jobs").iterdir()), reverse=True)
        found = (read_json(self.folder(name) / "job.json") for name in names)
        return [_from_json(facts) for facts in found if facts is not None]

    def finished_commands(self, job: str) -> int:
        """How many commands of a job have ended well."""
        status = read_json(self.folder(job) / "status.json") or {}
        return int(status.get("number", 0)) + (status.get("code") == 0)

    def later(self, job: Job) -> Job | None:
        """The latest job that does the same again; there is none if ``job`` is the last one."""
        same = (one for one in self.all() if one.kind == job.kind and one.commands[-1] == job.commands[-1])
        latest = next(same, job)
        return None if latest.id <= job.id else latest

    def state(self, job: str) -> str:
        """queued, running, done, failed, stopped, or interrupted: the worker and its command have disappeared."""
        return job_state(self.folder(job))

    def stop(self, job: str) -> None:
        """Ask a job to stop: its command gets the signal that Ctrl-C sends, and keeps its checkpoint."""
        folder = self.folder(job)
        if self.state(job) not in ACTIVE:
            raise Refused("this job is not running")
        (folder / "stop").touch()
        status = read_json(folder / "status.json") or {}
        child = _process(status.get("command"))
        if not _alive(status.get("worker")) and child is not None and child.alive:
            os.kill(child.pid, signal.SIGINT)

    def output(self, job: str, number: int = 0) -> Any:
        """What a command of a finished job printed as JSON."""
        return read_json(self.folder(job) / f"output-{number}")

    def log(self, job: str, *, lines: int = 20) -> list[str]:
        path = self.folder(job) / "log"
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 20_000))
            return file.read().decode(errors="replace").splitlines()[-lines:]


def read_job(folder: Path) -> Job:
    """The job in this folder."""
    facts = read_json(folder / "job.json")
    if facts is None:
        raise NotThere("there is no such job")
    return _from_json(facts)


def job_state(folder: Path) -> str:
    """The state of the job in this folder, from its status and from the processes that are alive."""
    status = read_json(folder / "status.json")
    if status is None:
        raise NotThere("there is no such job")
    state: str = status["state"]
    if state not in ACTIVE or _alive(status.get("worker")) or _alive(status.get("command")):
        return state
    # The worker may have finished between the reading of its status and the look at its process.
    state = (read_json(folder / "status.json") or status)["state"]
    if state not in ACTIVE:
        return state
    if "worker" not in status and time.time() - (folder / "status.json").stat().st_mtime < PATIENCE:
        return state
    return "interrupted"


def _process(facts: Mapping[str, int] | None) -> Process | None:
    return None if facts is None else Process(facts["pid"], facts["started"])


def _alive(facts: Mapping[str, int] | None) -> bool:
    process = _process(facts)
    return process is not None and process.alive


def _from_json(facts: Mapping[str, Any]) -> Job:
    commands = tuple(tuple(command) for command in facts["commands"])
    return Job(**{**facts, "commands": commands, "locks": tuple(facts["locks"])})
