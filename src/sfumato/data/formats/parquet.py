"""Parquet in Hugging Face form: one file, or a folder of shards ``<split>-00000-of-00004.parquet``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.data.errors import BadInput
from sfumato.data.formats.table import Table
from sfumato.data.source import Selection

_SHARD = re.compile(r"^(?P<split>.+?)(-\d+-of-\d+)?\.parquet$")
_ROWS = 64
_BUFFER = 1 << 20


def parquet(path: Path, selection: Selection) -> Table:
    """A source of the records of a parquet file or folder."""
    files = _shards(path, selection.split) if path.is_dir() else [path]
    return Table(files, selection, schema=pq.read_schema, batches=_batches, rows=_rows)


def files_in(folder: Path) -> list[Path]:
    """The parquet files of a folder; ``data/`` is where the Hub keeps them."""
    return sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))


def parquet_splits(folder: Path) -> dict[str, list[Path]]:
    """The files of each part."""
    found: dict[str, list[Path]] = {}
    for file in files_in(folder):
        match = _SHARD.match(file.name)
        if match:
            found.setdefault(match["split"], []).append(file)
    return found


def _shards(folder: Path, split: str) -> list[Path]:
    found = parquet_splits(folder)
    if len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise BadInput(
            f"the collection has no split called {split!r}",
            advice=f"Choose one with --split (split=...): {', '.join(sorted(found)) or 'there is none'}.",
        )
    return found[split]


def _rows(file: Path) -> int:
    with pq.ParquetFile(file) as opened:
        return int(opened.metadata.num_rows)


def _batches(file: Path, columns: list[str], first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    # Buffered and not ahead of time: a row group may be the whole file.
    with pq.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False) as opened:
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
