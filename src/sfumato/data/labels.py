"""Labels as numbers 0..K-1 of a public label set, which the user or the collection declares."""

from __future__ import annotations

from sfumato.data.errors import BadInput
from sfumato.data.source import Record, Selection, Source


class Labels:
    """The label set of a collection, and the number of each record's label."""

    def __init__(
        self, source: Source, selection: Selection, *, infer: bool, classes: tuple[str, ...] | None = None
    ) -> None:
        self._labelled = selection.labelled
        declared = classes or selection.classes or source.classes
        if not selection.labelled:
            declared = ("all",)
        elif declared is None and infer:
            declared = _inferred(source)
        elif declared is None:
            raise BadInput(
                "the label set is public and must be declared",
                advice="Declare it with classes=10 (--classes 10) or classes=('cat', 'dog') (--classes cat,dog), or "
                "read without labels by labelled=False (--no-labels).",
            )
        if not declared or len(set(declared)) != len(declared):
            raise BadInput("the label set must name each class once", advice="Check classes=... (--classes).")
        self.classes: tuple[str, ...] = declared
        self._numbers = {name: number for number, name in enumerate(declared)}

    def missing(self, record: Record) -> bool:
        """Null, or an empty string where that is no class."""
        return self._labelled and (record.label is None or (record.label == "" and "" not in self._numbers))

    def number(self, record: Record) -> int:
        """The number of the record's label in the label set."""
        if not self._labelled:
            return 0
        label = record.label
        if self.missing(record):
            raise BadInput(
                "an image has no label",
                advice='Label it, leave such images out with unlabelled="leave out" (--missing-labels "leave out"), or '
                "read without labels (labelled=False, --no-labels).",
                detail=record.name,
            )
        number = self._numbers.get(label, -1) if isinstance(label, str) else label
        if number is None or not 0 <= number < len(self.classes):
            raise BadInput(
                "a label is not in the declared label set",
                advice=f"Labels are one of the {len(self.classes)} declared names or a number from 0 to "
                f"{len(self.classes) - 1}. Declare the right classes, or use skip_bad=True (--skip-bad).",
                detail=f"{record.name}: {label!r}",
            )
        return number


def _inferred(source: Source) -> tuple[str, ...]:
    """The label set found in a PUBLIC collection: a pass over the labels alone."""
    found = {record.label for record in source.records()}
    names = sorted(label for label in found if isinstance(label, str) and label)
    highest = max((label for label in found if isinstance(label, int)), default=-1)
    if (names and highest >= 0) or highest >= 1 << 16:
        raise BadInput(
            "labels are neither names nor small numbers", advice="Declare the label set with classes=... (--classes)."
        )
    return tuple(names) or tuple(str(number) for number in range(highest + 1))
