"""Pages that were computed from real data: NOT PRIVATE is on every screen and every printed page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from sfumato.release.pages import render

TEMPLATES = Path(__file__).parent / "templates"
WATERMARK = "NOT PRIVATE"


def not_private_page(title: str, body: str) -> str:
    """``body``, which is markup, under the watermark."""
    return render_not_private("not_private.html.jinja", title=title, content=Markup(body))


def render_not_private(template: str, *, title: str, **values: Any) -> str:
    """A page by a template that extends ``not_private.html.jinja``."""
    return render(template, folders=(TEMPLATES,), title=title, **values)
