"""The options that several commands share, each defined once, and what they mean.

A command declares a group of options as one parameter, for example ``reading: ReadingOptions``; ``expanded`` turns
the fields of the group into options of the command line.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sfumato.cli.config import read_config
from sfumato.cli.console import use_progress_file, use_quiet, use_traceback

if TYPE_CHECKING:
    from sfumato.data.images import Options
    from sfumato.methods import Method
    from sfumato.privacy import AnyBudget
    from sfumato.privacy.budget import Unit
    from sfumato.release.signature import SigningKey

# Torch is imported where it is used: ``sfumato --help`` need not wait for it.

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if the machine has it.")]
MethodName = Annotated[
    str,
    typer.Option("--method", help="A method's name; see 'sfumato methods' [default: chosen from public facts]."),
]
TimeLimit = Annotated[float, typer.Option(min=0, help="Minutes that a method may take to be chosen without --method.")]
Collection = Annotated[
    Path, typer.Argument(metavar="DATA", help="Image folder, npz, idx folder, parquet, arrow; or s3://…")
]
ReleasePath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder or its release folder.")]

AllowCustom = Annotated[
    bool,
    typer.Option("--allow-custom", help="Import the module of a user's own method that the card names; it runs code."),
]


@dataclass(frozen=True)
class ReadingOptions:
    """How the images of a collection are read."""

    size: Annotated[int | None, typer.Option(min=1, help="Resize to a square of this many pixels.")] = None
    colour: Annotated[str | None, typer.Option(help="grey or rgb [default: as the files are].")] = None
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
    split: Annotated[str, typer.Option(help="Which part of a data set that has several.")] = "train"
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out records that cannot be read.")] = False
    internal: Annotated[bool, typer.Option("--internal", help="Let errors name private files and counts.")] = False

    @property
    def names_persons(self) -> bool:
        """Whether an option says whose image each image is."""
        return any(value is not None for value in (self.person_column, self.persons, self.person_pattern))

    def for_reader(self) -> Options:
        """The options as ``sfumato.read`` takes them."""
        if self.missing_labels not in ("refuse", "leave out"):
            raise ValueError(f"--missing-labels is 'refuse' or 'leave out', not {self.missing_labels!r}")
        return {
            "size": self.size,
            "colour": self.colour,  # type: ignore[typeddict-item]
            "classes": label_set(self.classes),
            "labelled": not self.no_labels,
            "unlabelled": self.missing_labels,  # type: ignore[typeddict-item]
            "image_column": self.image_column,
            "label_column": self.label_column,
            "person_column": self.person_column,
            "person_file": self.persons,
            "person_pattern": self.person_pattern,
            "split": self.split,
            "skip_bad": self.skip_bad,
            "internal": self.internal,
        }


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


@dataclass(frozen=True)
class MethodOptions:
    """The parameters of a method."""

    variant: Annotated[str, typer.Option(help="A variant of the method; 'certified' is its default form.")] = (
        "certified"
    )
    preset: Annotated[
        str | None, typer.Option(help="Settings to start from: 'paper' for those of the method's paper.")
    ] = None
    settings: Annotated[list[str] | None, typer.Option("--set", help="A parameter: --set steps=200.")] = None
    sampling_rate: Annotated[
        float | None, typer.Option(help="Short for --set sampling_rate=…: the probability of each unit in a step.")
    ] = None
    steps: Annotated[int | None, typer.Option(help="Short for --set steps=…: the number of training steps.")] = None

    def values(self) -> dict[str, Any]:
        """The parameters that were given."""
        values: dict[str, Any] = dict(setting_pair(text) for text in self.settings or [])
        short = {"sampling_rate": self.sampling_rate, "steps": self.steps}
        return {**values, **{key: value for key, value in short.items() if value is not None}}

    def configured(self, name: str) -> Method:
        """The method of this name with these parameters."""
        from sfumato.methods import find

        kind = find(name)
        start = dict(kind.preset(self.preset)) if self.preset is not None else {}
        if self.variant != "certified" or not start:
            start["variant"] = self.variant
        return kind.configured({**start, **self.values()})


LARGEST_DELTA = 1e-3


def default_delta(declared_size: int | None) -> float:
    """1e-5, or the largest power of ten that is at most a tenth of one over the declared number of units.

    >>> default_delta(None), default_delta(500), default_delta(60_000)
    (1e-05, 1e-05, 1e-06)
    """
    if declared_size is None:
        return 1e-5
    return min(1e-5, 10.0 ** math.floor(math.log10(1 / (10 * declared_size))))


def setting_pair(text: str) -> tuple[str, str]:
    """``key=value`` of a ``--set`` option."""
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--set takes key=value, not {text!r}")
    return key.strip(), value.strip()


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


def device_named(name: str) -> str:
    """``cpu`` or ``cuda``; a device that the machine does not have is refused."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device is cpu, cuda or auto, not {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: this machine has no CUDA device that torch can use; choose --device cpu")
    return name


def signing_key(path: Path | None) -> SigningKey | None:
    """The key that signs a release; the password of an encrypted one is asked for."""
    from sfumato.release.signature import SigningKey

    if path is None:
        return None
    encrypted = b"ENCRYPTED" in path.read_bytes()
    password = typer.prompt("Password of the key", hide_input=True, err=True) if encrypted else None
    return SigningKey.read(path, password=password)


@dataclass(frozen=True)
class _CommonOptions:
    """The options of every command; their callbacks act before the command runs."""

    config: Annotated[
        Path | None,
        typer.Option(callback=read_config, is_eager=True, help="A TOML file with options of this command."),
    ] = None
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", callback=use_quiet, is_eager=True, help="Print the result and errors only."),
    ] = False
    traceback: Annotated[
        bool, typer.Option("--traceback", callback=use_traceback, is_eager=True, help="Show where an error was raised.")
    ] = False
    progress_file: Annotated[
        Path | None,
        typer.Option(callback=use_progress_file, is_eager=True, hidden=True, help="Also write progress to this file."),
    ] = None


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """``function`` with the fields of its option groups, and the common options, as parameters of their own."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {"_common": _CommonOptions}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _parameters(parameter.annotation)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    parameters += _parameters(_CommonOptions)

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        del values["_common"]
        function(**values)

    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in dataclasses.fields(group)
    ]
