"""Files that are written whole or not at all, readable by their owner alone where they are private."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OWNER_ONLY = 0o600
READABLE = 0o644


def cache_folder(cache: str | Path | None = None) -> Path:
    """``cache`` if given, else ``sfumato`` in the user's cache folder (``$XDG_CACHE_HOME`` or ``~/.cache``)."""
    if cache is not None:
        return Path(cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sfumato"


def write_file(path: str | Path, content: str | bytes, *, private: bool) -> Path:
    """Write ``content`` atomically: a reader sees the old file or the new one, also after a crash.

    Args:
        path: The file to write or replace.
        content: Text is encoded as UTF-8.
        private: Whether only the owner may read the file.

    Returns:
        The path of the file.
    """
    path = Path(path)
    # mkstemp creates the file readable by its owner alone, so private content is never exposed in between.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fchmod(file.fileno(), OWNER_ONLY if private else READABLE)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return path


def write_json(path: str | Path, value: Any, *, private: bool) -> Path:
    """Write ``value`` as indented JSON, atomically; NaN and infinity are refused, because JSON has neither."""
    return write_file(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", private=private)


@contextlib.contextmanager
def new_folder(folder: str | Path, *, private: bool = False) -> Iterator[Path]:
    """A temporary folder to fill, which becomes ``folder`` when the block ends, and disappears when it raises.

    An existing empty folder is replaced; the caller decides what to say about one that is not empty.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o700 if private else 0o755)
        if folder.is_dir():
            folder.rmdir()
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def private_folder(folder: str | Path) -> Path:
    """Create ``folder`` and its parents if needed, and let only the owner enter it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder
