"""Labels as numbers 0..K-1 of a label set that is public: declared by the user or by the collection itself."""

from __future__ import annotations

from sfumato.data.errors import BadInput
from sfumato.data.source import Choice, Record, Source


class Labels:
    """The label set of a collection, and the way from a record's label to its number."""

    def __init__(self, source: Source, choice: Choice, *, infer: bool) -> None:
        self._labelled = choice.labelled
        declared = choice.classes or source.classes
        if not choice.labelled:
            declared = ("all",)
        elif declared is None and infer:
            declared = _inferred(source)
        elif declared is None:
            raise BadInput(
                "the label set is public and must be declared",
                advice="Say classes=10 or classes=('cat', 'dog'), or labelled=False to read without labels.",
            )
        if not declared or len(set(declared)) != len(declared):
            raise BadInput("the label set must name each class once", advice="Check classes=...")
        self.classes: tuple[str, ...] = declared
        self._numbers = {name: number for number, name in enumerate(declared)}

    def missing(self, record: Record) -> bool:
        """Null, or an empty string where that is no class."""
        return self._labelled and (record.label is None or (record.label == "" and "" not in self._numbers))

    def number(self, record: Record) -> int:
        if not self._labelled:
            return 0
        label = record.label
        if self.missing(record):
            raise BadInput(
                "an image has no label",
                advice='Label it, leave such images out with unlabelled="leave out", or read with labelled=False.',
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
        raise BadInput("labels are neither names nor small numbers", advice="Declare the label set with classes=...")
    return tuple(names) or tuple(str(number) for number in range(highest + 1))
