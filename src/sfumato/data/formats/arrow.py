"""A folder that Hugging Face ``datasets`` wrote with ``save_to_disk``: Arrow streams and small JSON files.

The ``datasets`` package itself is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from sfumato.data.errors import BadInput, parsing
from sfumato.data.formats.table import Table
from sfumato.data.source import Selection

_STATE = "state.json"
_SPLITS = "dataset_dict.json"


def is_arrow(folder: Path) -> bool:
    """Whether ``save_to_disk`` wrote the folder."""
    return (folder / _STATE).exists() or (folder / _SPLITS).exists()


def arrow(path: Path, selection: Selection) -> Table[Path]:
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
    return Table(files, selection, schema=_schema, batches=_batches)


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


def _schema(file: Path) -> pa.Schema:
    with pa.OSFile(str(file)) as opened, pa.ipc.open_stream(opened) as stream:
        return stream.schema


def _batches(file: Path, columns: list[str], first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    if first or last is not None:
        raise TypeError("a stream is read from its beginning to its end")
    # Read, not mapped: mapped pages would count as this process's memory.
    with pa.OSFile(str(file)) as opened, pa.ipc.open_stream(opened) as stream:
        for batch in stream:
            yield batch.select(columns)
