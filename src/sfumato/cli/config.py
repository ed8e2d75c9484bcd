"""``--config FILE``: the options of a command in a TOML file, and the file that a run writes about itself.

Keys are the names of the options, ``[set]`` holds the parameters of the method, and the command line takes
precedence over the file::

    data = "xrays/"
    method = "dp-merf"
    epsilon = 1.0
    person-column = "patient"

    [set]
    features = 1000
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

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
