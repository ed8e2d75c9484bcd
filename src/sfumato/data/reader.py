"""Recognises the format of a collection and reads it, record by record, into memory or the cache."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sfumato.data.cache import CachedArrays, Writer, cache_key, find
from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, from_system
from sfumato.data.formats.arrays import IMAGES, Idx, Npz, npz_splits, splits
from sfumato.data.formats.folder import FileList, Folder, folder_splits
from sfumato.data.formats.objects import ObjectSource
from sfumato.data.formats.tables import arrow, arrow_splits, files_in, is_arrow, parquet, parquet_splits
from sfumato.data.persons import Persons
from sfumato.data.source import Labels, Selection, Source, files_fingerprint, gather
from sfumato.files import cache_folder

Format = Literal["folder", "list", "npz", "idx", "parquet", "arrow"]

_RULES = 3  # raised where the same files are read as other rows or persons than before
_SOURCES: dict[str, Callable[[Path, Selection], Source]] = {
    "folder": Folder,
    "list": FileList,
    "npz": Npz,
    "idx": Idx,
    "parquet": parquet,
    "arrow": arrow,
}


@dataclass(frozen=True)
class Reading:
    """Everything that determines what a collection is read as."""

    transform: ImageTransform
    selection: Selection
    format: Format | None
    skip_bad: bool
    infer_classes: bool


def read_arrays(
    collection: str | Path | Any,
    reading: Reading,
    *,
    internal: bool,
    cache: str | Path | None,
    memory_limit: int,
) -> tuple[CachedArrays, tuple[str, ...]]:
    """The decoded rows and the label set. Raises BadInput alone; its text names no file unless ``internal``."""
    try:
        with silent_decoders():
            if not isinstance(collection, str | Path):
                return _read_object(collection, reading)
            limit = 0 if cache is not None else memory_limit
            return _read(Path(collection), reading, cache_folder(cache), limit)
    except BadInput as error:
        problem = error.shown(internal=internal)
    except OSError as error:
        problem = from_system(error).shown(internal=internal)
    # Outside the handlers, so that the error carries no context with names in it.
    raise problem


@contextmanager
def silent_decoders() -> Iterator[None]:
    """Suppress what decoders warn and log about single files: it is private."""
    logger, silent = logging.getLogger("PIL"), logging.NullHandler()
    propagated, logger.propagate = logger.propagate, False
    logger.addHandler(silent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(silent)


def recognise(path: Path) -> Format:
    """The format of the collection at ``path``."""
    if not path.exists():
        raise BadInput(f"there is nothing at {path}", advice="Check the path.")
    if path.is_dir():
        if is_arrow(path):
            return "arrow"
        if splits(path):
            return "idx"
        return "parquet" if files_in(path) else "folder"
    with path.open("rb") as file:
        start = file.read(8)
    if IMAGES.match(path.name) or start[:4] == b"\x00\x00\x08\x03":
        return "idx"
    if start[:4] == b"PK\x03\x04":
        return "npz"
    if start[:4] == b"PAR1":
        return "parquet"
    if start[:4] == b"\xff\xff\xff\xff":
        return "arrow"
    if path.suffix.lower() == ".csv":
        return "list"
    raise BadInput(
        f"{path} is not a collection in a known format",
        advice="Give an image folder, a .csv list of files, an .npz file, idx files, parquet or a saved Hugging Face "
        "data set, complete and under its usual name; in Python format=... names the format.",
    )


def collection_splits(path: Path) -> tuple[str, ...]:
    """The names of the parts of a collection; none where it has no parts."""
    kind = recognise(path)
    if kind in ("folder", "idx", "parquet", "arrow") and not path.is_dir():
        return ()
    parts: dict[str, Callable[[Path], Iterable[str]]] = {
        "folder": folder_splits,
        "idx": splits,
        "npz": npz_splits,
        "parquet": parquet_splits,
        "arrow": arrow_splits,
    }
    return tuple(parts[kind](path)) if kind in parts else ()


def open_source(path: Path, reading: Reading) -> Source:
    """The collection at ``path`` in its format, before any image is decoded."""
    path = path if reading.format else _exported(path)
    return _SOURCES[reading.format or recognise(path)](path, reading.selection)


def _read(path: Path, reading: Reading, folder: Path, memory_limit: int) -> tuple[CachedArrays, tuple[str, ...]]:
    source = open_source(path, reading)
    labels = Labels(source, reading.selection, infer=reading.infer_classes)
    beside = [] if reading.selection.person_file is None else [reading.selection.person_file]
    key = cache_key(_RULES, source.fingerprint(), files_fingerprint(beside), reading, labels.classes)
    found = find(folder, key) or _decoded(source, reading, labels, Writer(folder, memory_limit=memory_limit), key)
    return found, labels.classes


def _read_object(dataset: Any, reading: Reading) -> tuple[CachedArrays, tuple[str, ...]]:
    """A data set that is a Python object, into memory: nothing says whether it is the one that was read before."""
    source = ObjectSource(dataset, reading.selection)
    labels = Labels(source, reading.selection, infer=reading.infer_classes)
    return _decoded(source, reading, labels, Writer(cache_folder(), memory_limit=sys.maxsize), ""), labels.classes


def _decoded(source: Source, reading: Reading, labels: Labels, writer: Writer, key: str) -> CachedArrays:
    try:
        skipped = gather(source.records(), reading, labels, Persons(reading.selection).number, writer)
        if not writer.count:
            raise BadInput(
                "the collection has no images that can be used",
                advice="Check the path; with skip_bad (--skip-bad), see what was left out (internal=True, --internal).",
            )
        return writer.finish(key, {"skipped": skipped})
    except BaseException:
        writer.discard()
        raise


def _exported(path: Path) -> Path:
    """Inside a folder that ``export`` wrote, the images; any other path as it is."""
    if path.is_dir() and (path / "card.json").is_file():
        for name in ("images", "images.npz"):
            if (path / name).exists():
                return path / name
    return path
