"""How a collection is read and what may be spent, as options: one schema for the command line and the local page."""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from sfumato.data.images import Options
    from sfumato.privacy import AnyBudget
    from sfumato.privacy.budget import Unit

# Torch is imported where it is used: ``sfumato --help`` and the worker of the page need not wait for it.

Group = TypeVar("Group")

ExportFormat = Literal["folder", "npz", "parquet", "dicom"]
"""In which synthetic images are written."""


@dataclass(frozen=True)
class ReadingOptions:
    """How the images of a collection are read."""

    size: Annotated[int | None, typer.Option(min=1, help="Resize to a square of this many pixels.")] = None
    colour: Annotated[str | None, typer.Option(help="grey or rgb [default: as the files are].")] = None
    bits: Annotated[
        int | None, typer.Option(min=8, max=16, help="Bits that the values of 16-bit images use: 12 for most scanners.")
    ] = None
    classes: Annotated[
        str | None,
        typer.Option(help='The label set: a number, or names separated by commas ("a, b" in quotes has a comma).'),
    ] = None
    no_labels: Annotated[bool, typer.Option("--no-labels", help="Read without labels, as one class.")] = False
    missing_labels: Annotated[str, typer.Option(help="'refuse' records without a label, or 'leave out' them.")] = (
        "refuse"
    )
    image_column: Annotated[str | None, typer.Option(help="Column or array that holds the images.")] = None
    label_column: Annotated[str | None, typer.Option(help="Column or array that holds the labels.")] = None
    person_column: Annotated[
        str | None, typer.Option(help="Column or array that says whose image it is; PatientID for DICOM files.")
    ] = None
    persons: Annotated[
        Path | None, typer.Option(help="A CSV file with the columns file and person, for images that are files.")
    ] = None
    person_pattern: Annotated[
        str | None, typer.Option(help="A regular expression; its first group, in a file's name, is the person.")
    ] = None
    missing_persons: Annotated[
        str, typer.Option(help="Where persons are named, 'refuse' images that name none, or 'leave out' them.")
    ] = "refuse"
    split: Annotated[str, typer.Option(help="Which part of a data set that has several.")] = "train"
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out records that cannot be read.")] = False
    internal: Annotated[bool, typer.Option("--internal", help="Let errors name private files and counts.")] = False

    @property
    def names_persons(self) -> bool:
        """Whether an option says whose image each image is."""
        return any(value is not None for value in (self.person_column, self.persons, self.person_pattern))

    def for_reader(self) -> Options:
        """The options as ``sfumato.read`` takes them."""
        for name, value in (("labels", self.missing_labels), ("persons", self.missing_persons)):
            if value not in ("refuse", "leave out"):
                raise ValueError(f"--missing-{name} is 'refuse' or 'leave out', not {value!r}")
        return {
            "size": self.size,
            "colour": self.colour,  # type: ignore[typeddict-item]
            "bits": self.bits or 16,
            "classes": label_set(self.classes),
            "labelled": not self.no_labels,
            "unlabelled": self.missing_labels,  # type: ignore[typeddict-item]
            "image_column": self.image_column,
            "label_column": self.label_column,
            "person_column": self.person_column,
            "person_file": self.persons,
            "person_pattern": self.person_pattern,
            "missing_persons": self.missing_persons,  # type: ignore[typeddict-item]
            "split": self.split,
            "skip_bad": self.skip_bad,
            "internal": self.internal,
        }


AS_IT_IS = ReadingOptions()
"""A collection that is read without options."""


@dataclass(frozen=True)
class BudgetOptions:
    """How much may be spent, and for whom."""

    epsilon: Annotated[float | None, typer.Option(help="The ε that may be spent.")] = None
    delta: Annotated[
        float | None,
        typer.Option(help="The δ of the guarantee [default: 1e-5, or less if --declared-size asks for less]."),
    ] = None
    unit: Annotated[
        str | None, typer.Option(help="What is protected: image or person [default: person, if persons are named].")
    ] = None
    no_guarantee: Annotated[
        bool, typer.Option("--no-guarantee", help="For an algorithm that needs the raw records: the card says ε = ∞.")
    ] = False

    def budget(
        self, *, persons: bool = False, declared_size: int | None = None, ledger: Path | None = None
    ) -> AnyBudget:
        """The budget that was asked for.

        Args:
            persons: Whether the collection says whose image each image is; then the unit is a person unless
                ``--unit`` says otherwise.
            declared_size: The public number of units, from which δ follows where none was given.
            ledger: An existing ledger has a unit and a δ, which are taken where none were given.
        """
        from sfumato.privacy import Budget, Ledger, NoGuarantee

        limit = Ledger.read(ledger).limit if ledger is not None and ledger.exists() else None
        if self.unit not in ("image", "person", None):
            raise ValueError(f"--unit is image or person, not {self.unit!r}")
        usual: Unit = limit.unit if limit is not None else "person" if persons else "image"
        unit: Unit = usual if self.unit is None else "person" if self.unit == "person" else "image"
        if self.no_guarantee:
            if self.epsilon is not None:
                raise ValueError("--no-guarantee has no --epsilon; give one or the other")
            return NoGuarantee(unit=unit)
        if self.epsilon is None:
            raise ValueError("say how much may be spent: --epsilon 1 ('sfumato plan --epsilon-table' explains ε)")
        delta = self.delta
        if delta is None:
            delta = limit.delta if isinstance(limit, Budget) else default_delta(declared_size)
        if delta > LARGEST_DELTA:
            raise ValueError(
                f"--delta {delta:g} is too large: δ is the probability with which the guarantee may fail altogether. "
                "Choose at most 0.001, and less than a tenth of one over the number of units; 1e-5 is common"
            )
        return Budget(epsilon=self.epsilon, delta=delta, unit=unit)


LARGEST_DELTA = 1e-3


def default_delta(declared_size: int | None) -> float:
    """1e-5, or the largest power of ten that is at most a tenth of one over the declared number of units.

    >>> default_delta(None), default_delta(500), default_delta(60_000)
    (1e-05, 1e-05, 1e-06)
    """
    if declared_size is None:
        return 1e-5
    return min(1e-5, 10.0 ** math.floor(math.log10(1 / (10 * declared_size))))


def label_set(text: str | None) -> int | tuple[str, ...] | None:
    """The label set that ``--classes`` declares: a number of classes, or their names.

    >>> label_set("10"), label_set("cat, dog"), label_set('"mass, benign",none')
    (10, ('cat', 'dog'), ('mass, benign', 'none'))
    """
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True)))


def words(options: Any) -> list[str]:
    """The options that differ from their defaults, as the command line has them.

    Each is one word, ``--name=value``, so that no value can be taken for an option.

    >>> words(ReadingOptions(size=28, no_labels=True))
    ['--size=28', '--no-labels']
    """
    found = []
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), "--" + field.name.replace("_", "-")
        if value is True:
            found.append(name)
        elif value is not False and value != field.default:
            found.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
    return found


def to_fields(options: Any) -> dict[str, str]:
    """The options that differ from their defaults, as the fields of a form have them."""
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    usual = {field.name: field.default for field in dataclasses.fields(options)}
    return {key: "on" if value is True else str(value) for key, value in given.items() if value != usual[key]}


def from_fields(
    kind: type[Group], fields: Mapping[str, str], *, path: Callable[[str], Path], leave_out: frozenset[str]
) -> Group:
    """A group of options from the fields of a form; an empty field is the default.

    Args:
        kind: The group.
        fields: By the names of the options; a box that is not ticked is not there.
        path: Checks the path of a file.
        leave_out: Options that a form may not set.
    """
    hints = get_type_hints(kind, include_extras=True)
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        text = fields.get(name, "").strip()
        if name in leave_out or not text:
            continue
        annotated, *options = get_args(hint)
        plain = next((one for one in get_args(annotated) if one is not type(None)), annotated)
        if plain is bool:
            values[name] = True
        elif plain is Path:
            values[name] = path(text)
        elif plain is int:
            values[name] = whole_number(name, text, least=options[0].min or 0)
        else:
            values[name] = plain_text(name, text)
    return kind(**values)


def whole_number(name: str, text: str, *, least: int, most: int = 10**9) -> int:
    """A whole number of a form."""
    if not (text.isascii() and text.isdigit() and len(text) < 13 and least <= int(text) <= most):
        raise ValueError(f"{name.replace('_', ' ')} must be a whole number from {least} to {most}")
    return int(text)


def plain_text(name: str, text: str) -> str:
    """A text of a form, without control characters."""
    if len(text) > 20_000 or any(ord(letter) < 32 for letter in text):
        raise ValueError(f"{name.replace('_', ' ')} is too long or has control characters")
    return text
