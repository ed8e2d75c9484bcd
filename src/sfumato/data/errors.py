"""The error of the readers: which rule the input breaks and what to do, without revealing what is in the data."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
# What a disk or a network does that works at other times; it says nothing about the file that was asked for.
_FAILED = {
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EIO,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOTCONN,
    errno.EREMOTEIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_FORBIDDEN = {errno.EACCES, errno.EPERM}


class BadInput(ValueError):
    """Input that breaks a rule.

    Attributes:
        rule: The rule that is broken.
        advice: What to do about it.
        detail: Names of files and counts, which are private: empty unless they were asked for.
    """

    def __init__(self, rule: str, *, advice: str, detail: str = "") -> None:
        super().__init__(f"{rule}. {advice}" + (f" [{detail}]" if detail else ""))
        self.rule = rule
        self.advice = advice
        self.detail = detail

    def shown(self, *, internal: bool) -> BadInput:
        """A new error: its text, cause and traceback hold no name or count unless ``internal``."""
        if internal or not self.detail:
            return type(self)(self.rule, advice=self.advice, detail=self.detail)
        return type(self)(self.rule, advice=f"{self.advice} With internal=True (--internal) this error says which.")


class NoPerson(BadInput):
    """An image of which nobody said whose it is. It can be read, and ``skip_bad`` does not leave it out."""


class Unavailable(BadInput):
    """What a disk or a network failed to do: no record is bad, and the same command may succeed later."""


def from_system(error: OSError) -> BadInput:
    """What the operating system refused, as a rule."""
    detail = str(error)
    if error.errno in _FULL:
        return Unavailable(
            "there is no space left to write to",
            advice="Free some space, or choose another folder for the decoded pixels (cache=..., or the environment "
            "variable XDG_CACHE_HOME), and give the command again.",
            detail=detail,
        )
    if error.errno in _FAILED:
        return Unavailable(
            "the disk or the network failed",
            advice="Check both, then give the command again.",
            detail=detail,
        )
    if error.errno in _FORBIDDEN:
        return BadInput(
            "a part of the collection may not be read by this user",
            advice="Give the user who runs this read permission on every file and folder.",
            detail=detail,
        )
    if error.errno == errno.ENOENT:
        return BadInput("a file of the collection is missing", advice="Check the path.", detail=detail)
    return BadInput(
        "the operating system could not read or write a file", advice="Check the disk and the path.", detail=detail
    )


@contextmanager
def parsing(rule: str, *, advice: str, name: str = "") -> Iterator[None]:
    """Turn whatever a parser raises on malformed bytes into ``rule``.

    Parsers raise anything on hostile bytes (struct.error, RecursionError, MemoryError), so every exception is
    caught; errors of the operating system keep their meaning.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL | _FAILED | _FORBIDDEN | {errno.ENOENT}:
            raise
        detail = f"{name}: {type(error).__name__}: {error}" if name else f"{type(error).__name__}: {error}"
        raise BadInput(rule, advice=advice, detail=detail) from error
