"""Opening image files of a collection: only regular files inside its folder, in any format that can be decoded."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, from_system
from sfumato.data.formats.dicom import decode_dicom, has_burned_in_text, is_dicom

# Files that desktops create in every folder they show; hidden files are left out anyway.
_DESKTOP_FILES = frozenset({"Thumbs.db", "desktop.ini"})


def is_ignored(name: str) -> bool:
    """Whether a file or folder of this name is no part of a collection: it is hidden, or a desktop made it."""
    return name.startswith(".") or name in _DESKTOP_FILES


def real_path(root: str, path: str) -> str:
    """The real path of ``path``; a link that leads out of ``root`` is refused."""
    real, real_root = os.path.realpath(path), os.path.realpath(root)
    if real != real_root and not real.startswith(real_root.rstrip(os.sep) + os.sep):
        raise BadInput(
            "a path or link leads out of the folder",
            advice="Copy what it points to into the folder, or remove it (skip_bad=True, --skip-bad, leaves it out).",
            detail=os.path.relpath(path, root),
        )
    return real


def load_image(root: str, relative: str, transform: ImageTransform) -> np.ndarray:
    """Decode the image file ``relative`` inside ``root``."""
    try:
        real = real_path(root, os.path.join(root, relative))
        # Not blocking: a named pipe would wait for a writer for ever.
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise BadInput(
                "something in a class folder is not a file",
                advice="Class folders hold images only, no further folders; or use skip_bad=True (--skip-bad).",
                detail=relative,
            )
        with open(handle, "rb") as file:
            return decode_image(file, relative, transform)
    except OSError as error:
        raise from_system(error) from error


def decode_image(file: BinaryIO, name: str, transform: ImageTransform) -> np.ndarray:
    """Decode an image file that is open."""
    if is_dicom(file):
        return transform.fit(decode_dicom(file, name=name), name=name)
    return transform.decode(file, name=name)


def burned_in_text(root: Path, relative: str) -> bool:
    """Whether ``relative`` is a DICOM file that declares text burned into its pixels."""
    with open(real_path(str(root), os.path.join(root, relative)), "rb") as file:
        return is_dicom(file) and has_burned_in_text(file)
