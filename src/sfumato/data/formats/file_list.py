"""A CSV file that lists images: a column with paths, one with labels and, if there is one, one with persons."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from sfumato.data.errors import BadInput, parsing
from sfumato.data.formats.files import load_image
from sfumato.data.listing import Entry, ListedSource
from sfumato.data.source import Record, Selection, files_fingerprint

_IMAGE_COLUMNS = ("file", "path", "image", "filename")
_MALFORMED = "the list of files is not a CSV file"
_ADVICE = "Save it as UTF-8 text with commas and column names in the first line."


class FileList(ListedSource):
    """Paths are relative to the folder of the list and stay inside it."""

    def __init__(self, path: Path, selection: Selection) -> None:
        self._path, self.root = path, path.parent
        names = self._names()
        usual = next((name for name in _IMAGE_COLUMNS if name in names), None)
        self._image = _column(selection.image_column or usual, names, "image-column")
        self._label = _column(selection.label_column or "label", names, "label-column") if selection.labelled else None
        person = selection.person_column
        self._person = None if person is None else _column(person, names, "person-column")

    def _names(self) -> list[str]:
        with parsing(_MALFORMED, advice=_ADVICE), self._path.open(newline="", encoding="utf-8-sig") as file:
            return list(csv.DictReader(file).fieldnames or [])

    def fingerprint(self) -> str:
        """Of the list and of every file in it."""
        files = (self.root / name for name, _, _ in self.entries())
        return files_fingerprint(chain([self._path], (file for file in files if file.is_file())))

    def count(self) -> int | None:
        with parsing(_MALFORMED, advice=_ADVICE), self._path.open(newline="", encoding="utf-8-sig") as file:
            return sum(1 for _ in csv.DictReader(file))

    def entries(self, scratch: Path | None = None) -> Iterator[Entry]:
        """Path, label and person of every image, in the order of the list."""
        with parsing(_MALFORMED, advice=_ADVICE), self._path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.DictReader(file):
                name = os.path.normpath((row[self._image] or "").strip())
                label = None if self._label is None else _label(row[self._label])
                yield name, label, None if self._person is None else (row[self._person] or "").strip() or None

    def records_of(self, entries: Iterable[Entry]) -> Iterator[Record]:
        root = str(self.root)
        for name, label, person in entries:
            yield Record(load=partial(load_image, root, name), label=label, person=person, name=name, file=name)


def _column(name: str | None, names: list[str], option: str) -> str:
    if name is None or names.count(name) != 1:
        raise BadInput(
            f"the list of files has no single column {name!r}" if name else "the list of files has no column of paths",
            advice=f"Name the column with --{option}. Columns: {', '.join(names[:20]) or 'none'}.",
        )
    return name


def _label(text: str | None) -> int | str | None:
    text = (text or "").strip()
    return int(text) if text.isdecimal() else text or None
