"""Plain-text tables for ``print``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
