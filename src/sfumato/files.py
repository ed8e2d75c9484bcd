"""Files and folders that are written whole or not at all, and readable by their owner alone where they are private."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OWNER_ONLY, _READABLE = 0o600, 0o644
_OWNER_FOLDER, _READABLE_FOLDER = 0o700, 0o755


def cache_folder(cache: str | Path | None = None) -> Path:
    """``cache`` if given, else ``sfumato`` in the user's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``)."""
    if cache is not None:
        return Path(cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sfumato"


@contextlib.contextmanager
def new_file(path: str | Path, *, private: bool) -> Iterator[Path]:
    """A temporary file to write, which replaces ``path`` when the block ends and disappears when it raises.

    A reader sees the old file or the new one, never a part of it, also after a crash.

    Args:
        path: The file to write or replace; its folder must exist.
        private: Whether only the owner may read the file.

    Yields:
        The path of the temporary file, in the same folder.
    """
    path = Path(path)
    # mkstemp creates the file readable by its owner alone, so private content is never exposed in between.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    os.close(descriptor)
    try:
        with _as_os_error():
            yield Path(name)
        # A writer that replaces the file by one of its own, as safetensors may, loses the mode that mkstemp set.
        os.chmod(name, _OWNER_ONLY if private else _READABLE)
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """A full disk is one error, also where a library has its own for it."""
    try:
        yield
    except Exception as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if isinstance(error, OSError) or code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


def write_file(path: str | Path, content: str | bytes, *, private: bool) -> Path:
    """Write ``content`` atomically.

    Args:
        path: The file to write or replace; its folder must exist.
        content: Text is encoded as UTF-8.
        private: Whether only the owner may read the file.

    Returns:
        The path of the file.
    """
    with new_file(path, private=private) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def write_json(path: str | Path, value: Any, *, private: bool, indent: int = 2) -> Path:
    """Write ``value`` as indented JSON, atomically; NaN and infinity are refused, because JSON has neither."""
    return write_file(path, json_text(value, indent=indent), private=private)


def json_text(value: Any, *, indent: int = 2) -> str:
    """``value`` as it is written to every JSON file: indented, in UTF-8, with a line break at the end."""
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def parsed_json(text: str) -> Any:
    """What JSON text says; an entry that is written twice is refused, since readers differ in which one they take."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("an entry is written twice")
        return found

    return json.loads(text, object_pairs_hook=unique)


@contextlib.contextmanager
def new_folder(folder: str | Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary folder to fill, which becomes ``folder`` when the block ends and disappears when it raises.

    An existing empty folder is replaced; the caller decides what to say about one that is not empty.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(_OWNER_FOLDER if private else _READABLE_FOLDER)
        if folder.is_dir():
            folder.rmdir()
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def private_folder(folder: str | Path) -> Path:
    """Create ``folder`` and its parents if needed, and let only the owner enter it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=_OWNER_FOLDER)
    folder.chmod(_OWNER_FOLDER)
    return folder
