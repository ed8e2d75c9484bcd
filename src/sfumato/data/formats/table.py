"""Tables in Hugging Face form: a column of encoded images beside columns for the label and the person.

Parquet files and ``datasets`` folders differ only in how record batches come off the disk.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, parsing
from sfumato.data.remote import RemoteFile
from sfumato.data.source import Record, Selection, files_fingerprint

File = TypeVar("File", bound=Path | RemoteFile)
Batches = Callable[[File, list[str], int, int | None], Iterator[pa.RecordBatch]]
"""Opens a file and gives batches with these columns, of the rows from one number up to another; memory stays flat."""

_MALFORMED = "a table file is damaged"
_ADVICE = "Fetch or write it again."


class Table(Generic[File]):
    """Images as ``struct<bytes, path>`` or plain bytes; labels and persons as whole numbers or strings."""

    def __init__(
        self,
        files: Sequence[File],
        selection: Selection,
        *,
        schema: Callable[[File], pa.Schema],
        batches: Batches[File],
        rows: Callable[[File], int] | None = None,
    ) -> None:
        if not files:
            raise BadInput("the collection has no table files", advice="Check the path and the split.")
        self._files, self._batches, self._rows = files, batches, rows
        self._image = selection.image_column or "image"
        self._label = (selection.label_column or "label") if selection.labelled else None
        self._person = selection.person_column
        for file in files:
            with parsing(_MALFORMED, advice=_ADVICE, name=file.name):
                found = schema(file)
                self._check(found)
                self.classes = None if self._label is None else _declared(found, self._label)

    def _check(self, schema: pa.Schema) -> None:
        for name in (self._image, self._label, self._person):
            if name is not None and schema.names.count(name) != 1:
                raise BadInput(
                    f"the table has no single column {name!r}",
                    advice="Name the columns with --image-column, --label-column and --person-column, or "
                    f"read without labels (--no-labels, labelled=False). Columns: {', '.join(schema.names[:20])}.",
                )
        kind = schema.field(self._image).type
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise BadInput(
                "the image column must hold encoded images",
                advice="Store PNG or JPEG files as struct<bytes: binary, path: string> or as binary.",
                detail=str(schema.field(self._image).type),
            )
        for name in (self._label, self._person):
            if name is not None:
                kind = schema.field(name).type
                whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
                if not (whole or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                    raise BadInput(
                        f"the column {name!r} must hold whole numbers or strings",
                        advice="Convert the column.",
                        detail=str(kind),
                    )

    def fingerprint(self) -> str:
        return files_fingerprint(self._files)

    def count(self) -> int | None:
        """None where the format does not say how many rows a file has."""
        if self._rows is None:
            return None
        return sum(self._counts)

    @cached_property
    def _counts(self) -> list[int]:
        """The number of rows of each file, for which every file is opened: once, not for every part."""
        if self._rows is None:
            raise TypeError("the rows of this format cannot be counted")
        counts = []
        for file in self._files:
            with parsing(_MALFORMED, advice=_ADVICE, name=file.name):
                counts.append(self._rows(file))
        return counts

    def part(self, start: int, stop: int) -> Iterator[Record]:
        before = 0
        for file, rows in zip(self._files, self._counts, strict=True):
            if before < stop and before + rows > start:
                first = max(start - before, 0)
                yield from self._records(file, before + first, first, min(stop - before, rows))
            before += rows

    def records(self) -> Iterator[Record]:
        row = 0
        for file in self._files:
            for record in self._records(file, row, 0, None):
                yield record
                row += 1

    def _records(self, file: File, row: int, first: int, last: int | None) -> Iterator[Record]:
        """The rows ``first`` to ``last`` of a file, called by their numbers in the collection, from ``row`` on."""
        columns = [name for name in (self._image, self._label, self._person) if name is not None]
        with parsing(_MALFORMED, advice=_ADVICE, name=file.name):
            for batch in self._batches(file, columns, first, last):
                # Offsets in a damaged file may point anywhere: check them before a value is looked at.
                batch.validate(full=True)
                for values in batch.to_pylist():
                    name = f"row {row}"
                    yield Record(
                        load=partial(_decode, values[self._image], name),
                        label=None if self._label is None else _plain(values[self._label]),
                        person=None if self._person is None else _plain(values[self._person]),
                        name=name,
                    )
                    row += 1


def _decode(value: dict[str, object] | bytes | None, name: str, transform: ImageTransform) -> np.ndarray:
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes):
        raise BadInput(
            "an image is missing from the image column",
            advice="Images must be inside the table, not paths to files elsewhere; or use skip_bad=True (--skip-bad).",
            detail=name,
        )
    return transform.decode(io.BytesIO(content), name=name)


def _plain(value: object) -> int | str | None:
    return value if isinstance(value, str) or value is None else int(value)  # type: ignore[call-overload]


def _declared(schema: pa.Schema, label: str) -> tuple[str, ...] | None:
    """Class names that Hugging Face keeps in the schema; None when there are none."""
    try:
        kept = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        names = kept["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError):
        return None
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
