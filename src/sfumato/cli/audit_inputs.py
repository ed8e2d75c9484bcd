"""What an audit runs on, and how its results are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.privacy import AnyBudget, Budget, PrivateRecords

LIMIT = 200
"""Units of a user's collection that take part in an audit: replay's cost grows with them, what it shows does not."""


def find_method(name: str, variant: str, settings: list[str] | None, *, real_schedule: bool = False) -> Method:
    """A registered method, or a class of the user's own, in its small form with some parameters changed.

    With ``real_schedule`` sampling rates and numbers of steps are those of the default form, the networks stay small.
    """
    from sfumato.methods import find

    kind = find(name)
    small = kind.small(variant)
    values: dict[str, Any] = {}
    if real_schedule:
        default = kind(variant=small.variant).parameters()
        values = {name: value for name, value in default.items() if name.endswith(("sampling_rate", "steps"))}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--set takes key=value, not {setting!r}")
        values[key.strip()] = value.strip()
    return kind.configured({**small.parameters(), **values}) if values else small


def budget_for(method: Method, epsilon: float, delta: float, unit: str) -> AnyBudget:
    """A budget, or none for an algorithm that needs the raw records."""
    from sfumato.privacy import Budget, NoGuarantee

    if method.raw_access:
        return NoGuarantee(unit=unit)  # type: ignore[arg-type]
    budget: Budget = Budget(epsilon, delta, unit=unit)  # type: ignore[arg-type]
    return budget


def collection(data: Path | None, size: int | None, unit: str, seed: int, classes: str | None = None) -> PrivateRecords:
    """Random and worst-case images, or some of the user's own."""
    import numpy as np

    from sfumato.audit.worst_case import worst_case_images
    from sfumato.data import PrivateImages

    if data is None:
        return worst_case_images(96, size=size or 28, persons=unit == "person")
    names = None if classes is None else int(classes) if classes.isdigit() else classes.split(",")
    private = PrivateImages.read(data, size=size, classes=names)
    rows = np.sort(np.random.default_rng(seed).permutation(len(private._labels))[:LIMIT])
    persons = private._persons
    if persons is not None:
        persons = np.unique(np.asarray(persons)[rows], return_inverse=True)[1]
    return PrivateImages(
        private._pixels[rows], np.asarray(private._labels)[rows], classes=private.classes, persons=persons
    )


def release_images(path: Path, classes: tuple[str, ...], split: str, size: int | None, limit: int) -> tuple[Any, Any]:
    """Pixels and labels, the labels numbered as the release numbers its classes."""
    from sfumato.data.images import read

    found = read(path, split=split, size=size, classes=classes)
    return found.pixels[:limit], found.labels[:limit]


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Print a line as it is."""
    from sfumato.cli.console import console

    console.print(text, soft_wrap=True, markup=False, highlight=False)


def print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print a table."""
    from rich.table import Table

    from sfumato.cli.console import console

    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    console.print(table)
