"""The options that several commands share, each defined once, and ``--config FILE``, which reads them from TOML."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sfumato.cli.console import use_progress_file, use_quiet, use_traceback

if TYPE_CHECKING:
    from sfumato.methods import Method
    from sfumato.release.signature import SigningKey


_NOT_IN_A_FILE = frozenset({"config", "help", "quiet", "traceback", "resume", "second", "progress-file"})


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of ``--config``: the file's values become the defaults of the command's options."""
    if path is None:
        return None
    try:
        found = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"--config: {path} is not TOML: {error}") from None
    names = _option_names(context)
    defaults: dict[str, Any] = {}
    for key, value in found.items():
        name = names.get(key.replace("_", "-"))
        if name is None:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(names))}"
            raise ValueError(
                f"--config: 'sfumato {context.info_name}' has no option {key!r}; {hint} "
                "Parameters of the method belong into the table [set]"
            )
        defaults[name] = [f"{k}={v}" for k, v in value.items()] if isinstance(value, Mapping) else value
    context.default_map = {**(context.default_map or {}), **defaults}
    return path


def config_text(context: typer.Context) -> str:
    """The options of this command as a file that ``--config`` reads; options that have their default are left out."""
    lines, tables = [], []
    for key, name in _option_names(context).items():
        value = context.params.get(name)
        default = next(parameter.default for parameter in context.command.params if parameter.name == name)
        if value is None or value == default:
            continue
        if key == "set":
            tables += ["", "[set]", *(f"{_key(k.strip())} = {_toml(_number(v.strip()))}" for k, _, v in _pairs(value))]
        else:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _pairs(settings: list[str]) -> list[tuple[str, str, str]]:
    return [text.partition("=") for text in settings]


def _key(name: str) -> str:
    """A key of a table; one with a dot, as ``dp-merf.features``, is quoted."""
    return json.dumps(name) if "." in name else name


def _option_names(context: typer.Context) -> dict[str, str]:
    """From the name in a file to the name of the parameter."""
    names = {}
    for parameter in context.command.params:
        long = [option for option in parameter.opts if option.startswith("--")]
        key = long[0].removeprefix("--") if long else parameter.name
        if parameter.name and key and key not in _NOT_IN_A_FILE:
            names[key] = parameter.name
    return names


def _number(text: str) -> int | float | bool | str:
    try:
        return json.loads(text) if text not in ("null", "NaN", "Infinity", "-Infinity") else text
    except ValueError:
        return text


def _toml(value: Any) -> str:
    """A string, number or truth value; JSON writes them as TOML does."""
    return json.dumps(str(value.resolve()) if isinstance(value, Path) else value, ensure_ascii=False)


# Torch is imported where it is used: ``sfumato --help`` need not wait for it.

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if the machine has it.")]
MethodName = Annotated[
    str,
    typer.Option("--method", help="A method's name; see 'sfumato methods' [default: chosen from public facts]."),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="MINUTES",
        min=0.01,
        help="Minutes of training on this device: only methods that keep to it are chosen, and the one that trains "
        "gets fewer steps if it must [default: 60 for the choice].",
    ),
]
DeclaredSize = Annotated[
    int | None, typer.Option(min=1, help="Roughly how many units (images or persons) there are; made public.")
]
Collection = Annotated[Path, typer.Argument(metavar="DATA", help="Image folder, npz, idx folder, parquet or arrow.")]
ReleasePath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder or its release folder.")]

AllowCustom = Annotated[
    bool,
    typer.Option("--allow-custom", help="Import the module of a user's own method that the card names; it runs code."),
]


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


def setting_pair(text: str) -> tuple[str, str]:
    """``key=value`` of a ``--set`` option."""
    key, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--set takes key=value, not {text!r}")
    return key.strip(), value.strip()


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
