"""Whose image it is: from the collection itself, from a CSV file beside it, or from a pattern on file names."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sfumato.data.errors import BadInput, NoPerson, parsing
from sfumato.data.source import Record, Selection

_NO_PERSON = "an image names no person"
# Beside those of Unicode's categories Cc (blanks are kept) and Cf.
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0]")
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u00b4`", "'"))
_FILL = (
    'Name a person for every image, or leave such images out with missing_persons="leave out" (--missing-persons '
    '"leave out").'
)


class Persons:
    """Numbers the persons of a collection 0, 1, … in the order of their first image; the names are not kept."""

    def __init__(self, selection: Selection) -> None:
        given = [selection.person_column, selection.person_file, selection.person_pattern]
        if sum(value is not None for value in given) > 1:
            raise BadInput(
                "persons are named in more than one way",
                advice="Give one of --person-column, --persons and --person-pattern "
                "(person_column, person_file, person_pattern).",
            )
        self._numbers: dict[int | str, int] = {}
        self._required = any(value is not None for value in given)
        self._by_file = None if selection.person_file is None else _read_file(selection.person_file)
        self._pattern = None if selection.person_pattern is None else _compiled(selection.person_pattern)

    def number(self, record: Record) -> int | None:
        """The number of the record's person; ``None`` where the collection names no persons."""
        return self.numbered(self.name(record))

    def numbered(self, person: int | str | None) -> int | None:
        """The number of a person, which is the next one for a person not seen before."""
        return None if person is None else self._numbers.setdefault(person, len(self._numbers))

    def name(self, record: Record) -> int | str | None:
        """The record's person as the collection names it, in one spelling: two would be two persons.

        An empty name is no name: all images without one would be one person, and removing somebody's would not remove
        a unit.
        """
        person = self._person(record)
        if isinstance(person, str):
            person = one_spelling(person)
        if person == "" or (person is None and self._required):
            raise NoPerson(_NO_PERSON, advice=_FILL, detail=record.name)
        return person

    def given(self, record: Record) -> int | str | None:
        """The record's person as the collection spells the name; for inspections, which are private."""
        return self._person(record)

    def _person(self, record: Record) -> int | str | None:
        if self._by_file is None and self._pattern is None:
            return record.person
        if record.file is None:
            raise BadInput(
                "the images of this collection have no file names",
                advice="--persons and --person-pattern are for image folders and lists of files; a table or an npz "
                "file names persons in a column (--person-column).",
            )
        if self._by_file is not None:
            return self._by_file.get(record.file, self._by_file.get(Path(record.file).name))
        if self._pattern is not None and (match := self._pattern.search(Path(record.file).name)):
            return match[1] if self._pattern.groups else match[0]
        return None


def one_spelling(name: str) -> str:
    """A name without what readers do not see: letter case, forms of one letter, kinds of blanks, dashes, apostrophes.

    Two persons who are joined are protected together, which protects each of them. Digits are left as they are, since
    7 and 007 may be two persons.

    >>> one_spelling("Zoe\u0308\u00a0 LEE\u200b ") == one_spelling("zo\u00eb lee")
    True
    """
    text = _normal(_seen(name))
    return " ".join(_seen(_normal(text)).split())


def _seen(text: str) -> str:
    """Without what has no shape and would keep an accent from its letter; with one kind of dash and of apostrophe."""
    found = []
    for letter in text.translate(_APOSTROPHES):
        kind = unicodedata.category(letter)
        if letter.isspace() or (kind not in ("Cc", "Cf") and not _UNSEEN.match(letter)):
            found.append("-" if kind == "Pd" else letter)
    return "".join(found)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@dataclass(frozen=True)
class Proposal:
    """A part of the file names that several images share, which may be the name of a person.

    Attributes:
        pattern: The regular expression for ``--person-pattern``.
        words: Which part of a name it takes.
        persons: How many persons there would be.
        fewest: Images of the person who has fewest.
        most: Images of the person who has most.
        examples: The first names.
        unnamed: How many images of each label the pattern names no person for.
    """

    pattern: str
    words: str
    persons: int
    fewest: int
    most: int
    examples: tuple[str, ...]
    unnamed: dict[str, int]

    @property
    def sentence(self) -> str:
        """What the pattern does to this collection."""
        images = f"{self.fewest:,} to {self.most:,} images each" if self.most > self.fewest else f"{self.most:,} each"
        text = f"{self.words}: {self.persons:,} persons, {images}: {', '.join(self.examples)} …"
        return f"{text}; {unnamed_text(self.unnamed)}" if self.unnamed else text


def unnamed_text(unnamed: Mapping[str, int]) -> str:
    """How many images name no person, and of which classes.

    >>> unnamed_text({"normal": 1341})
    '1,341 images name no person (normal: 1,341)'
    """
    classes = ", ".join(f"{label}: {count:,}" for label, count in sorted(unnamed.items()) if label)
    return f"{sum(unnamed.values()):,} images name no person" + (f" ({classes})" if classes else "")


_PARTS = (
    (r"^([^.]+)\.[^.]+\.", "the part before the first of several dots"),
    *(
        (rf"^([^{mark}]+{rf'{mark}[^{mark}]+' * (count - 1)}){mark}", f"the part before the {word} {name}")
        for mark, name in (("_", "_"), ("-", "-"), (" ", "blank"))
        for count, word in ((1, "first"), (2, "second"))
    ),
)


def proposals(records: Iterable[Record]) -> list[Proposal]:
    """Patterns by which some images share a person and not all do, those that name most images first."""
    found = [(re.compile(pattern), words) for pattern, words in _PARTS]
    persons: list[Counter[str]] = [Counter() for _ in found]
    unnamed: list[Counter[str]] = [Counter() for _ in found]
    for record in records:
        name = "" if record.file is None else Path(record.file).name
        for (pattern, _), named, missing in zip(found, persons, unnamed, strict=True):
            if match := pattern.search(name):
                named[one_spelling(match[1])] += 1
            else:
                missing["" if record.label is None else str(record.label)] += 1
    kept: list[Proposal] = []
    for (pattern, words), named, missing in zip(found, persons, unnamed, strict=True):
        if 1 < len(named) < named.total():
            fewest, most = min(named.values()), max(named.values())
            kept.append(
                Proposal(pattern.pattern, words, len(named), fewest, most, tuple(sorted(named)[:3]), dict(missing))
            )
    return sorted(kept, key=lambda one: sum(one.unnamed.values()))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise BadInput(
            f"the person pattern is not a regular expression: {error}",
            advice=r"An example: --person-pattern '^([^_]+)_' takes what stands before the first underscore.",
        ) from None


def _read_file(path: Path) -> Mapping[str, str]:
    """From a file's name, or its path in the collection, to a person: the columns ``file`` and ``person``."""
    found: dict[str, str] = {}
    with (
        parsing("the file of persons is not a CSV file", advice="Save it as UTF-8 text with commas.", name=path.name),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        rows = csv.DictReader(file)
        if not {"file", "person"} <= set(rows.fieldnames or ()):
            raise BadInput(
                "the file of persons has no columns 'file' and 'person'",
                advice="Its first line must name them: file,person",
            )
        for row in rows:
            name, person = (row["file"] or "").strip(), (row["person"] or "").strip()
            if not name or not person:
                continue
            if found.setdefault(name, person) != person:
                raise BadInput(
                    "the file of persons gives one image two persons",
                    advice="Name each file once, by its path inside the collection where names repeat.",
                    detail=name,
                )
    return found
