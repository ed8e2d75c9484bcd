"""Write docs/reference/command-line.md from the commands themselves.

python docs/reference/command_line.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer.main

from sfumato.cli.main import app

PAGE = Path(__file__).with_name("command-line.md")
HEAD = """# Command line

Every command prints its options with `--help`. `--json` prints results for programs, `--quiet` (before the command) prints
results and errors only. The exit status is 0 when all went well, 1 when a check found something, 2 when the input was wrong.

This page is written by `python docs/reference/command_line.py`.
"""


def page() -> str:
    """The page: a section for each command."""
    root: Any = typer.main.get_command(app)
    parts = [HEAD]
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            parts.append(f"## sfumato {name}\n\n{_about(command)}\n")
            parts += [_section(f"{name} {inner}", found, 3) for inner, found in command.commands.items()]
        else:
            parts.append(_section(name, command, 2))
    return "\n".join(parts)


def _about(command: Any) -> str:
    return " ".join((command.help or "").split())


def _section(name: str, command: Any, level: int) -> str:
    shown = [one for one in command.params if not getattr(one, "hidden", False) and one.name != "help"]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    usage = " ".join([f"sfumato {name}", *map(_usage, arguments), *(["[OPTIONS]"] if options else [])])
    lines = [f"{'#' * level} sfumato {name}", "", _about(command), "", "```text", usage, "```", ""]
    if shown:
        lines += ["| | default | |", "|---|---|---|"]
        lines += [_row(one) for one in (*arguments, *options)]
        lines.append("")
    return "\n".join(lines)


def _usage(argument: Any) -> str:
    name = _metavar(argument)
    return name if argument.required else f"[{name}]"


def _metavar(one: Any) -> str:
    return str(one.metavar or one.name.upper())


def _row(one: Any) -> str:
    name = _metavar(one) if one.param_type_name == "argument" else ", ".join(sorted(one.opts, key=len, reverse=True))
    default = one.default
    if callable(default) or default is None or default == () or isinstance(default, bool):
        shown = "required" if one.required else ""
    else:
        shown = f"`{default}`"
    about = " ".join((one.help or "").split()).replace("|", "\\|")
    return f"| `{name}` | {shown} | {about} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
