"""The options that several commands share, each defined once, and what they mean.

A command declares a group of options as one parameter, for example ``reading: ReadingOptions``; ``expanded`` turns
the fields of the group into options of the command line.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sfumato.cli.config import read_config
from sfumato.cli.console import use_quiet, use_traceback

if TYPE_CHECKING:
    from sfumato.data.images import Options
    from sfumato.methods import Method
    from sfumato.privacy import AnyBudget

# Torch is imported where it is used: ``sfumato --help`` need not wait for it.

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if the machine has it.")]
MethodName = Annotated[str, typer.Option("--method", help="A method's name; see 'sfumato methods'.")]
Collection = Annotated[Path, typer.Argument(metavar="DATA", help="Image folder, npz, idx folder, parquet or arrow.")]
ReleasePath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder or its release folder.")]


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
    person_column: Annotated[str | None, typer.Option(help="Column or array that says whose image it is.")] = None
    split: Annotated[str, typer.Option(help="Which part of a data set that has several.")] = "train"
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out records that cannot be read.")] = False
    internal: Annotated[bool, typer.Option("--internal", help="Let errors name private files and counts.")] = False

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
            "split": self.split,
            "skip_bad": self.skip_bad,
            "internal": self.internal,
        }


@dataclass(frozen=True)
class BudgetOptions:
    """How much may be spent, and for whom."""

    epsilon: Annotated[float | None, typer.Option(help="The ε that may be spent.")] = None
    delta: Annotated[float, typer.Option(help="The δ of the guarantee; well below one over the number of units.")] = (
        1e-5
    )
    unit: Annotated[str, typer.Option(help="What is protected: image, or person by a person column.")] = "image"
    no_guarantee: Annotated[
        bool, typer.Option("--no-guarantee", help="For an algorithm that needs the raw records: the card says ε = ∞.")
    ] = False

    def budget(self) -> AnyBudget:
        """The budget that was asked for."""
        from sfumato.privacy import Budget, NoGuarantee

        if self.no_guarantee:
            if self.epsilon is not None:
                raise ValueError("--no-guarantee has no --epsilon; give one or the other")
            return NoGuarantee(unit=self.unit)  # type: ignore[arg-type]
        if self.epsilon is None:
            raise ValueError("say how much may be spent: --epsilon 1")
        return Budget(epsilon=self.epsilon, delta=self.delta, unit=self.unit)  # type: ignore[arg-type]


@dataclass(frozen=True)
class MethodOptions:
    """The parameters of a method."""

    variant: Annotated[str, typer.Option(help="A variant of the method; 'certified' is its default form.")] = (
        "certified"
    )
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

        return find(name).configured({"variant": self.variant, **self.values()})


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


def release_folder(path: Path) -> Path:
    """The release folder of a run, or the path itself."""
    return path / "release" if (path / "release").is_dir() else path


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
