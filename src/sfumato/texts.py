"""Times and tables as people read them: the one spelling of both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def duration(seconds: float | None) -> str:
    """A time in its natural unit; "unknown" where it was never measured.

    >>> [duration(one) for one in (1.25, 42, 150, 9000, 864_000, None)]
    ['1.2 s', '42 s', '2 min', '2.5 h', '10 days', 'unknown']
    """
    if seconds is None or math.isnan(seconds):
        return "unknown"
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.2g} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """The rows in columns as wide as their longest cell.

    >>> print(aligned([("query", "steps"), ("mean", "10")]))
    query  steps
    mean   10
    """
    lines = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ((cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)
