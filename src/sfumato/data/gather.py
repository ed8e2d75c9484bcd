"""Decodes records one by one, and keeps what can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from sfumato.data.errors import BadInput, Unavailable
from sfumato.data.labels import Labels
from sfumato.data.source import Record

if TYPE_CHECKING:
    from sfumato.data.reader import Reading

Person = TypeVar("Person", contravariant=True)

NAMED_AT_MOST = 1000
"""Records that were left out are named up to this number."""


class Rows(Protocol[Person]):
    """Takes decoded rows; ``shape`` is that of the first image."""

    shape: tuple[int, ...] | None

    def add(self, pixels: np.ndarray, *, label: int, person: Person) -> None:
        """Keep one row."""


def gather(
    records: Iterable[Record],
    reading: Reading,
    labels: Labels,
    person_of: Callable[[Record], Person],
    rows: Rows[Person],
) -> list[str]:
    """Decode every record; returns which were left out as bad, and why."""
    skipped: list[str] = []
    skip_unlabelled = reading.selection.unlabelled == "leave out"
    for record in records:
        if skip_unlabelled and labels.missing(record):
            continue
        try:
            pixels = record.load(reading.transform)
            label, person = labels.number(record), person_of(record)
        except BadInput as error:
            if isinstance(error, Unavailable) or not reading.skip_bad:
                raise
            if len(skipped) < NAMED_AT_MOST:
                skipped.append(f"{record.name}: {error.rule}")
            continue
        check_shape(rows.shape, pixels.shape, record.name)
        rows.add(pixels, label=label, person=person)
    return skipped


def check_shape(before: tuple[int, ...] | None, now: tuple[int, ...], name: str) -> None:
    """Refuse images of several shapes."""
    if before not in (None, now):
        raise BadInput(
            "the images differ in size or colour",
            advice='Say what they are to become: size=32 (--size 32), colour="grey" (--colour grey) or "rgb".',
            detail=f"{name}: {now} after {before}",
        )
