"""HTML pages from templates: escaped, without scripts, with everything inside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent / "templates"


@cache
def page_environment(*folders: Path) -> Environment:
    """Templates of ``folders`` and of the release pages, which they may extend.

    Every value is escaped unless it is markup already, and a name that a template does not get is an error.
    """
    return Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, *, folders: Sequence[Path] = (), **values: Any) -> str:
    """The page that a template makes of these values."""
    return page_environment(*folders).get_template(template).render(**values)
