"""Tables of results for pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sfumato.evaluation.metrics import metric_named
from sfumato.evaluation.results import ImageCounts, LeftOut, Measurement


@dataclass(frozen=True)
class Table:
    """Named columns, and rows with a name and a cell for each column; ``own`` is the column that is set in bold."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    own: int | None = None


def measurement_table(measurements: Sequence[Measurement]) -> Table:
    """A line for each metric, a column for each row of the evaluation; the first is the synthetic one."""
    columns = tuple(dict.fromkeys(one.row for one in measurements))
    lines: dict[str, dict[str, str]] = {}
    for one in measurements:
        lines.setdefault(one.heading, {})[one.row] = one.text
        worst = one.worst_class
        if one.metric == "accuracy" and worst is not None and worst.mean is not None:
            text = f"{metric_named('accuracy').text(worst.mean)} ({worst.name})"
            lines.setdefault(f"worst class, {one.classifier}", {})[one.row] = text
    rows = tuple((name, tuple(cells.get(column, "–") for column in columns)) for name, cells in lines.items())
    return Table(columns, rows, own=0)


def counts_text(counts: ImageCounts) -> str:
    """How many images took part."""
    limit = counts.feature_images_at_most
    return (
        f"{counts.synthetic[0]} synthetic, {counts.real_train} real training and {counts.real_test} real test images; "
        f"distances from {'all' if limit is None else f'at most {limit}'} of each set."
    )


def left_out_text(left_out: Sequence[LeftOut]) -> str:
    """What was not measured, and why."""
    return "".join(f" Left out: {one.metric}: {one.reason}." for one in left_out)


def seconds_text(seconds: float) -> str:
    """Seconds, or minutes from two on."""
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def mebibytes_text(size: float) -> str:
    """Bytes in MiB."""
    return f"{size / 2**20:.0f} MiB"
