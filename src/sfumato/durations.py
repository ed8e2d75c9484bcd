"""Times that a person can read: the one spelling of durations in tables, pages and messages."""

from __future__ import annotations

import math


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
