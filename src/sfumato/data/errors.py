"""The one error of the readers: which rule the input broke and what to do, without telling what is in the data."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM}


class BadInput(ValueError):
    """Input that breaks a rule. ``detail`` may name files and counts: it is shown to those who asked for it only."""

    def __init__(self, rule: str, *, advice: str, detail: str = "") -> None:
        super().__init__(f"{rule}. {advice}" + (f" [{detail}]" if detail else ""))
        self.rule = rule
        self.advice = advice
        self.detail = detail

    def shown(self, *, internal: bool) -> BadInput:
        """A fresh error: its text, cause and traceback hold no name or count unless ``internal``."""
        return BadInput(self.rule, advice=self.advice, detail=self.detail if internal else "")


def from_system(error: OSError) -> BadInput:
    """What the operating system refused, as a rule."""
    detail = str(error)
    if error.errno in _FULL:
        return BadInput(
            "there is no room left to write to",
            advice="Free some space or name another place for the decoded pixels (cache=...); nothing was left behind.",
            detail=detail,
        )
    if error.errno in _FORBIDDEN:
        return BadInput(
            "a part of the collection may not be read by this user",
            advice="Give the user who runs this read permission on every file and folder.",
            detail=detail,
        )
    if error.errno == errno.ENOENT:
        return BadInput("there is nothing at this place", advice="Check the path.", detail=detail)
    return BadInput(
        "the operating system could not read or write a file", advice="Check the disk and the path.", detail=detail
    )


@contextmanager
def parsing(rule: str, *, advice: str, name: str = "") -> Iterator[None]:
    """Whatever a parser throws at malformed bytes becomes ``rule``. Parsers of hostile bytes throw anything at all
    (struct.error, RecursionError, MemoryError), so the net is wide; the system's own errors keep their meaning."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL | _FORBIDDEN | {errno.ENOENT, errno.EIO}:
            raise
        detail = f"{name}: {type(error).__name__}: {error}" if name else f"{type(error).__name__}: {error}"
        raise BadInput(rule, advice=advice, detail=detail) from error
