"""Parquet in Hugging Face form: one file, or a folder of shards ``<split>-00000-of-00004.parquet``."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.data.errors import BadInput
from sfumato.data.formats.table import File, Table
from sfumato.data.remote import RemoteFile, RemoteStream
from sfumato.data.source import Selection

_SHARD = re.compile(r"^(?P<split>.+?)(-\d+-of-\d+)?\.parquet$")
_ROWS = 64
_BUFFER = 1 << 20


def parquet(path: Path, selection: Selection) -> Table[Path]:
    """A source of the records of a parquet file or folder."""
    return parquet_table(chosen_shards(files_in(path), selection.split) if path.is_dir() else [path], selection)


def parquet_table(files: Sequence[File], selection: Selection) -> Table[File]:
    """A source of the records of these files."""
    return Table(files, selection, schema=_schema, batches=_batches, rows=_rows)


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
    return by_split(files_in(folder))


def by_split(files: Iterable[File]) -> dict[str, list[File]]:
    """The files of each part."""
    found: dict[str, list[File]] = {}
    for file in files:
        match = _SHARD.match(file.name)
        if match:
            found.setdefault(match["split"], []).append(file)
    return found


def chosen_shards(files: Iterable[File], split: str) -> list[File]:
    """The files of the part asked for; when there is but one part, that one."""
    found = by_split(files)
    if len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise BadInput(
            f"the collection has no split called {split!r}",
            advice=f"Choose one with --split (split=...): {', '.join(sorted(found)) or 'there is none'}.",
        )
    return found[split]


def _schema(file: Path | RemoteFile) -> pa.Schema:
    with _opened(file) as source:
        return pq.read_schema(source)


def _rows(file: Path | RemoteFile) -> int:
    with _opened(file) as source, pq.ParquetFile(source) as opened:
        return int(opened.metadata.num_rows)


def _opened(file: Path | RemoteFile) -> AbstractContextManager[Path | RemoteStream]:
    return nullcontext(file) if isinstance(file, Path) else file.open()


def _batches(file: Path | RemoteFile, columns: list[str], first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    # Buffered and not ahead of time: a row group may be the whole file.
    with _opened(file) as source, pq.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False) as opened:
        sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
        ends = list(itertools.accumulate(sizes))
        last = (ends[-1] if ends else 0) if last is None else last
        groups = [g for g, end in enumerate(ends) if end > first and end - sizes[g] < last]
        row = ends[groups[0]] - sizes[groups[0]] if groups else 0
        for batch in opened.iter_batches(batch_size=_ROWS, row_groups=groups, columns=columns, use_threads=False):
            begin, end = max(first - row, 0), min(last - row, len(batch))
            row += len(batch)
            if begin < end:
                yield batch.slice(begin, end - begin)
