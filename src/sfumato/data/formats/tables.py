"""Tables in Hugging Face form, Parquet files or Arrow streams: encoded images beside columns for labels and persons."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, parsing
from sfumato.data.source import Record, Selection, files_fingerprint

Batches = Callable[[Path, list[str]], Iterator[pa.RecordBatch]]
"""Opens a file and gives batches with these columns; memory stays flat."""

_MALFORMED = "a table file is damaged"
_ADVICE = "Fetch or write it again."


class Table:
    """Images as ``struct<bytes, path>`` or plain bytes; labels and persons as whole numbers or strings."""

    def __init__(
        self,
        files: Sequence[Path],
        selection: Selection,
        *,
        schema: Callable[[Path], pa.Schema],
        batches: Batches,
    ) -> None:
        if not files:
            raise BadInput("the collection has no table files", advice="Check the path and the split.")
        self._files, self._batches = files, batches
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

    def records(self) -> Iterator[Record]:
        columns = [name for name in (self._image, self._label, self._person) if name is not None]
        row = 0
        for file in self._files:
            with parsing(_MALFORMED, advice=_ADVICE, name=file.name):
                for batch in self._batches(file, columns):
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


_SHARD = re.compile(r"^(?P<split>.+?)(-\d+-of-\d+)?\.parquet$")
_ROWS = 64
_BUFFER = 1 << 20


def parquet(path: Path, selection: Selection) -> Table:
    """A source of the records of a parquet file or folder."""
    files = _chosen_shards(path, selection.split) if path.is_dir() else [path]
    return Table(files, selection, schema=pq.read_schema, batches=_batches)


def files_in(folder: Path) -> list[Path]:
    """The parquet files of a folder; ``data/`` is where the Hub keeps them."""
    for place in (folder, folder / "data"):
        if place.is_dir():
            # Not by glob, which lists a folder of any size in memory.
            with os.scandir(place) as entries:
                found = sorted(Path(entry.path) for entry in entries if entry.name.endswith(".parquet"))
            if found:
                return found
    return []


def parquet_splits(folder: Path) -> dict[str, list[Path]]:
    """The files of each part of a folder."""
    found: dict[str, list[Path]] = {}
    for file in files_in(folder):
        match = _SHARD.match(file.name)
        if match:
            found.setdefault(match["split"], []).append(file)
    return found


def _chosen_shards(folder: Path, split: str) -> list[Path]:
    """The files of the part asked for; when there is but one part, that one."""
    found = parquet_splits(folder)
    if len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise BadInput(
            f"the collection has no split called {split!r}",
            advice=f"Choose one with --split (split=...): {', '.join(sorted(found)) or 'there is none'}.",
        )
    return found[split]


def _batches(file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    # Buffered and not ahead of time: a row group may be the whole file.
    with pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as opened:
        yield from opened.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False)


_STATE = "state.json"
_SPLITS = "dataset_dict.json"


def is_arrow(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote the folder."""
    return (folder / _STATE).exists() or (folder / _SPLITS).exists()


def arrow(path: Path, selection: Selection) -> Table:
    """A source of the records of a saved ``Dataset``, of one split of a saved ``DatasetDict``, or of one file."""
    if path.is_dir() and (path / _SPLITS).exists():
        splits = arrow_splits(path)
        chosen = splits[0] if len(splits) == 1 else selection.split
        if chosen not in splits:
            raise BadInput(
                f"the collection has no split called {chosen!r}",
                advice=f"Choose one with --split (split=...): {', '.join(splits)}.",
            )
        path = _inside(path, chosen)
    files = _files(path) if path.is_dir() else [path]
    return Table(files, selection, schema=_stream_schema, batches=_stream_batches)


def arrow_splits(folder: Path) -> list[str]:
    """The names of the parts of a saved ``DatasetDict``; none for a saved ``Dataset``."""
    if not (folder / _SPLITS).exists():
        return []
    with parsing("the list of splits is damaged", advice="Save the data set again with save_to_disk."):
        names = json.loads((folder / _SPLITS).read_text())["splits"]
        return [name for name in names if isinstance(name, str)]


def _files(folder: Path) -> list[Path]:
    with parsing("the list of data files is damaged", advice="Save the data set again with save_to_disk."):
        state = json.loads((folder / _STATE).read_text())
        if state.get("_indices_data_files"):
            raise BadInput(
                "the data set was saved with an index by an old version", advice="Save it again with save_to_disk."
            )
        return [_inside(folder, entry["filename"]) for entry in state["_data_files"]]


def _inside(folder: Path, name: str) -> Path:
    if not name or Path(name).name != name or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise BadInput("a file of the data set lies outside its folder", advice="Save the data set again.", detail=name)
    return folder / name


def _stream_schema(file: Path) -> pa.Schema:
    with pa.OSFile(str(file)) as opened, pa.ipc.open_stream(opened) as stream:
        return stream.schema


def _stream_batches(file: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    # Read, not mapped: mapped pages would count as this process's memory.
    with pa.OSFile(str(file)) as opened, pa.ipc.open_stream(opened) as stream:
        for batch in stream:
            yield batch.select(columns)
