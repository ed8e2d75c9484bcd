"""The way in: recognises what a path holds and reads it, record by record, into memory or the cache."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sfumato.data import cache as store
from sfumato.data.decode import Frame
from sfumato.data.errors import BadInput, from_system
from sfumato.data.formats.arrow import arrow, is_arrow
from sfumato.data.formats.folder import Folder
from sfumato.data.formats.idx import IMAGES, Idx, splits
from sfumato.data.formats.npz import Npz
from sfumato.data.formats.parquet import files_in, parquet
from sfumato.data.labels import Labels
from sfumato.data.source import Choice, Record, Source
from sfumato.files import cache_folder

Format = Literal["folder", "npz", "idx", "parquet", "arrow"]

_SOURCES: dict[str, Callable[[Path, Choice], Source]] = {
    "folder": Folder,
    "npz": Npz,
    "idx": Idx,
    "parquet": parquet,
    "arrow": arrow,
}
_NAMED_AT_MOST = 1000


@dataclass(frozen=True)
class Reading:
    """Everything that decides what a collection is read as."""

    frame: Frame
    choice: Choice
    format: Format | None
    skip_bad: bool
    infer_classes: bool


def read_kept(
    path: str | Path, reading: Reading, *, internal: bool, cache: str | Path | None, memory_limit: int
) -> tuple[store.CachedArrays, tuple[str, ...]]:
    """The decoded rows and the label set. Raises BadInput alone; its text names no file unless ``internal``."""
    try:
        with _silence():
            return _read(Path(path), reading, cache_folder(cache), 0 if cache is not None else memory_limit)
    except BadInput as error:
        problem = error.shown(internal=internal)
    except OSError as error:
        problem = from_system(error).shown(internal=internal)
    # Outside the handlers, so that the error carries no context with names in it.
    raise problem


@contextmanager
def _silence() -> Iterator[None]:
    """Decoders warn and log about what they find in single files: that is private, and has its rule here."""
    decoders = logging.getLogger("PIL")
    passed_on, mute = decoders.propagate, logging.NullHandler()
    decoders.propagate = False
    decoders.addHandler(mute)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        decoders.propagate = passed_on
        decoders.removeHandler(mute)


def recognise(path: Path) -> Format:
    """The format of what lies at ``path``."""
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
    raise BadInput(
        "this is no collection of a known kind",
        advice="Give an image folder, an .npz file, idx files, parquet or a saved Hugging Face data set, whole and "
        "under its usual name; or name the kind with format=...",
    )


def _read(path: Path, reading: Reading, folder: Path, memory_limit: int) -> tuple[store.CachedArrays, tuple[str, ...]]:
    path = path if reading.format else _exported(path)
    source = _SOURCES[reading.format or recognise(path)](path, reading.choice)
    labels = Labels(source, reading.choice, infer=reading.infer_classes)
    key = store.cache_key(source.fingerprint(), reading, labels.classes)
    kept = store.find(folder, key)
    if kept is None:
        writer = store.Writer(folder, memory_limit=memory_limit)
        try:
            aside = _gather(source, reading, labels, writer)
            kept = writer.finish(key, {"set_aside": aside})
        except BaseException:
            writer.discard()
            raise
    return kept, labels.classes


def _exported(path: Path) -> Path:
    """Inside a folder that ``export`` wrote, the images; any other path as it is."""
    if path.is_dir() and (path / "card.json").is_file():
        for name in ("images", "images.npz"):
            if (path / name).exists():
                return path / name
    return path


def _gather(source: Source, reading: Reading, labels: Labels, writer: store.Writer) -> list[str]:
    """Every record through the frame into the writer; returns what was set aside, and why."""
    aside: list[str] = []
    persons: dict[int | str, int] = {}
    skip_unlabelled = reading.choice.unlabelled == "leave out"
    for record in source.records():
        if skip_unlabelled and labels.missing(record):
            continue
        try:
            pixels = record.load(reading.frame)
            label = labels.number(record)
            person = None
            if reading.choice.person_column is not None or record.person is not None:
                person = persons.setdefault(_person(record), len(persons))
        except BadInput as error:
            if not reading.skip_bad:
                raise
            if len(aside) < _NAMED_AT_MOST:
                aside.append(f"{record.name}: {error.rule}")
            continue
        if writer.shape not in (None, pixels.shape):
            raise BadInput(
                "the pictures differ in size or colour",
                advice='Say what they are to become: size=32, colour="grey" or colour="rgb".',
                detail=f"{record.name}: {pixels.shape} after {writer.shape}",
            )
        writer.add(pixels, label=label, person=person)
    if not writer.count:
        raise BadInput(
            "the collection has no images that can be used",
            advice="Check the path; with skip_bad, look at what was set aside (internal=True).",
        )
    return aside


def _person(record: Record) -> int | str:
    if record.person is None:
        raise BadInput(
            "an image names no person",
            advice="Fill the person column, or set such records aside with skip_bad=True (--skip-bad).",
            detail=record.name,
        )
    return record.person
