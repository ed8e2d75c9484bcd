"""Reads a large collection in several processes, in parts that are kept until all of it is read.

A part is a range of records. Each is decoded by a process of its own into a folder, which gets its name when the part
is complete. A reading that is killed goes on with the parts that are missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from sfumato.data.cache import Writer
from sfumato.data.errors import BadInput, Unavailable
from sfumato.data.persons import Persons
from sfumato.data.source import NAMED_AT_MOST, ListedSource, Source, check_shape
from sfumato.files import private_folder

if TYPE_CHECKING:
    from sfumato.data.reader import Reading

PART = 1 << 14
"""Records of one part: what is read again, at most, by each process after a kill."""


class Workers:
    """The processes that read; by default one for each core that this process may use."""

    def __init__(self, count: int | None = None, progress: Callable[[int], None] | None = None) -> None:
        if count is not None and count < 1:
            raise ValueError(f"a collection is read by at least one process, not {count}")
        self._count = count or len(os.sched_getaffinity(0))
        self._progress = progress

    def pay(self, source: Source) -> bool:
        """Whether this collection is read in several processes."""
        return self._count > 1 and (source.count() or 0) >= 2 * PART

    def read(
        self, path: Path, reading: Reading, classes: tuple[str, ...], writer: Writer, kept: Path, source: Source
    ) -> list[str]:
        """Decode all records into the writer; returns which were left out as bad, and why.

        ``kept`` is where finished parts lie, until the caller removes them.
        """
        skipped: list[str] = []
        for part in _joined(self.parts(path, reading, kept, source, classes=classes), reading, writer):
            skipped += part[: NAMED_AT_MOST - len(skipped)]
        return skipped

    def parts(
        self, path: Path, reading: Reading, folder: Path, source: Source, *, classes: tuple[str, ...] | None = None
    ) -> list[Path]:
        """What the processes made of each part, in ``folder``: decoded rows, or counts where no classes are given."""
        private_folder(folder)
        count = source.use_listing(folder) if isinstance(source, ListedSource) else source.count() or 0
        parts = {start: folder / str(start) for start in range(0, count, PART)}
        settings = {"path": str(path), "reading": _plain(asdict(reading)), "classes": classes}
        settings |= {"folder": str(folder), "size": PART}
        self._decode([start for start, part in parts.items() if not part.exists()], settings, len(parts))
        return list(parts.values())

    def _decode(self, missing: list[int], settings: dict[str, Any], total: int) -> None:
        """Give every process one part after another.

        Without threads: those of an executor would keep a process that has lost the others of its run, or that was
        interrupted, alive until all parts are read.
        """
        processes = [_Process(settings) for _ in range(min(self._count, len(missing)))]
        left, done = iter(missing), total - len(missing)
        try:
            with DefaultSelector() as answers:
                for process, start in zip(processes, left, strict=False):
                    process.begin(start)
                    answers.register(process.output, EVENT_READ, process)
                while answers.get_map():
                    for key, _ in answers.select():
                        key.data.finish()
                        done += 1
                        if self._progress is not None:
                            self._progress(100 * done // total)
                        if (following := next(left, None)) is None:
                            answers.unregister(key.fileobj)
                        else:
                            key.data.begin(following)
        finally:
            for process in processes:
                process.close()


class _Process:
    """A process that decodes parts: a line with a start comes in, a line with an error or without one goes out."""

    def __init__(self, settings: dict[str, Any]) -> None:
        source = str(Path(__file__).parent.parent.parent)
        paths = os.pathsep.join(path for path in (source, os.environ.get("PYTHONPATH")) if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sfumato.data.part_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        self._say(settings)

    @property
    def output(self) -> IO[str]:
        """Where the answers come out."""
        if self._process.stdout is None:
            raise RuntimeError("the process has no output")
        return self._process.stdout

    def _say(self, message: object) -> None:
        if self._process.stdin is None:
            raise RuntimeError("the process has no input")
        # One that has ended is noticed when its answer is read.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def begin(self, start: int) -> None:
        """Decode the part that begins at ``start``."""
        self._say(start)

    def finish(self) -> None:
        """Read the answer; raises what the process could not do."""
        answer = self.output.readline()
        if not answer:
            raise Unavailable(
                "a process that reads the collection has ended",
                advice="Give the command again: parts that were read are kept.",
            )
        error = json.loads(answer)
        if error is not None:
            kind = Unavailable if error["unavailable"] else BadInput
            raise kind(error["rule"], advice=error["advice"], detail=error["detail"])

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _joined(parts: list[Path], reading: Reading, writer: Writer) -> Iterator[list[str]]:
    """Add the parts to the writer in their order; yields what was left out of each."""
    persons = Persons(replace(reading.selection, person_file=None))  # the parts name the persons
    for part in parts:
        facts = json.loads((part / "facts.json").read_text())
        yield facts["skipped"]
        if not facts["count"]:
            continue
        check_shape(writer.shape, tuple(facts["shape"]), facts["first"])
        names = json.loads((part / "persons.json").read_text())
        numbers = [number for name in names if (number := persons.numbered(name)) is not None]
        with (part / "pixels").open("rb") as pixels:
            labels = np.fromfile(part / "labels", dtype=np.int64)
            writer.extend(pixels, tuple(facts["shape"]), labels, np.array(numbers, dtype=np.int64))


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value
