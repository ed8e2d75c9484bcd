"""A finding of ``make check``: a place of the repository, and what is wrong there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finding:
    """What is wrong at a line of a file."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        path = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{path.as_posix()}:{self.line}: {self.text}"


def line_of(text: str, place: int | str) -> int:
    """The line of a place in a text, or of the first occurrence of words; 1 where they do not occur."""
    offset = place if isinstance(place, int) else max(0, text.find(place))
    return text.count("\n", 0, offset) + 1


def failed_claim(path: Path, claim: Callable[[], object]) -> Iterator[Finding]:
    """What a function that asserts things about a file found false: its assertion, and what it was about."""
    try:
        claim()
    except (AssertionError, LookupError, ValueError) as error:
        [*_, last] = traceback.extract_tb(error.__traceback__)
        yield Finding(path, 1, f"{last.name}: {last.line} {error}".strip())
