"""First samples of a training that is under way, drawn now and then from its last checkpoint.

``sfumato preview`` runs in a process of its own, on one thread and with low priority, so that the training hardly
notices it. It reads the checkpoint alone: it costs no privacy, and no private number can be in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sfumato.files import write_file, write_json
from sfumato.web import commands
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
