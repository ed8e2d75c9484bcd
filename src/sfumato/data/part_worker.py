"""The process that decodes parts of a collection: ``python -m sfumato.data.part_worker``, for ``parallel``."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, Unavailable, from_system
from sfumato.data.inspection import Counts, public_keys_in
from sfumato.data.persons import Persons
from sfumato.data.reader import Reading, open_source, silent_decoders
from sfumato.data.source import Labels, ListedSource, Record, Selection, gather
from sfumato.files import write_json


class PartRows:
    """The rows of a part, in files: pixels, labels and the names of persons."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pixels, self._labels = (_created(folder / name) for name in ("pixels", "labels"))
        self._persons: list[int | str | None] = []
        self.shape: tuple[int, ...] | None = None

    def add(self, pixels: np.ndarray, *, label: int, person: int | str | None) -> None:
        self.shape = pixels.shape
        self._pixels.write(pixels.tobytes())
        self._labels.write(np.int64(label).tobytes())
        self._persons.append(person)

    def finish(self, skipped: list[str], first: int) -> None:
        """Name the folder by its first record, when everything is written."""
        for file in (self._pixels, self._labels):
            file.close()
        write_json(self._folder / "persons.json", self._persons, private=True)
        facts = {"count": len(self._persons), "shape": self.shape, "skipped": skipped, "first": f"after row {first}"}
        write_json(self._folder / "facts.json", facts, private=True)
        try:
            self._folder.rename(self._folder.parent / str(first))
        except OSError:
            # A process of a reading that was killed may have finished the same part meanwhile.
            if not (self._folder.parent / str(first)).is_dir():
                raise
            shutil.rmtree(self._folder, ignore_errors=True)


def _created(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb", buffering=1 << 20)


class Parts(ABC):
    """A collection of which one part after another is taken."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._reading = _reading(settings["reading"])
        self._source = open_source(Path(settings["path"]), self._reading)
        self._persons = Persons(self._reading.selection)
        self._folder, self._size = Path(settings["folder"]), int(settings["size"])
        if isinstance(self._source, ListedSource):
            self._source.use_listing(self._folder)

    @abstractmethod
    def decode(self, start: int) -> None:
        """Take the part that begins at ``start``, and leave a file or folder of this name."""

    def _records(self, start: int) -> Iterator[Record]:
        return self._source.part(start, start + self._size)


class PartReader(Parts):
    """Decodes parts into folders of rows."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        classes = tuple(settings["classes"])
        self._labels = Labels(self._source, self._reading.selection, infer=False, classes=classes)

    def decode(self, start: int) -> None:
        # A name of its own: a process of a reading that was killed may still be writing this part.
        rows = PartRows(Path(tempfile.mkdtemp(prefix=f"{start}-", suffix=".new", dir=self._folder)))
        skipped = gather(self._records(start), self._reading, self._labels, self._persons.name, rows)
        rows.finish(skipped, start)


class PartInspector(Parts):
    """Counts what parts hold, into JSON files."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._known = public_keys_in(self._folder)

    def decode(self, start: int) -> None:
        counts = Counts()
        for record in self._records(start):
            counts.add(record, self._persons, self._known, root=getattr(self._source, "root", None))
        write_json(self._folder / str(start), counts.to_plain(), private=True)


def _reading(plain: dict[str, Any]) -> Reading:
    transform, selection = dict(plain["transform"]), dict(plain["selection"])
    if isinstance(transform["size"], list):
        transform["size"] = tuple(transform["size"])
    if selection["classes"] is not None:
        selection["classes"] = tuple(selection["classes"])
    if selection["person_file"] is not None:
        selection["person_file"] = Path(selection["person_file"])
    parts = {"transform": ImageTransform(**transform), "selection": Selection(**selection)}
    return Reading(**{**plain, **parts})


def _told(error: BadInput) -> dict[str, Any]:
    told = {"rule": error.rule, "advice": error.advice, "detail": error.detail}
    return {**told, "unavailable": isinstance(error, Unavailable)}


def main() -> None:
    """Answer every line that comes in."""
    reader: Parts | None = None
    for line in sys.stdin:
        message = json.loads(line)
        try:
            with silent_decoders():
                if reader is None:
                    settings = message if isinstance(message, dict) else {}
                    reader = (PartInspector if settings["classes"] is None else PartReader)(settings)
                    continue
                reader.decode(int(message))
            answer: dict[str, Any] | None = None
        except BadInput as error:
            answer = _told(error)
        except OSError as error:
            answer = _told(from_system(error))
        try:
            print(json.dumps(answer), flush=True)
        except BrokenPipeError:
            # The reading was killed. What is still in the buffer must not raise again when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return


if __name__ == "__main__":
    main()
