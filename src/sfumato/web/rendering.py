"""Pages from templates, each with a banner that says whether what it shows may leave."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse

from sfumato.release.pages import page_environment, render
from sfumato.release.plain_numbers import factor_text, level
from sfumato.report.watermark import TEMPLATES as REPORT_TEMPLATES
from sfumato.web.choices import EPSILONS

TEMPLATES = Path(__file__).parent / "templates"
STATIC = Path(__file__).parent / "static"
_STYLES = ("style.css.jinja", "chart.css.jinja", "rows.css.jinja")
INSIDE = ("inside", "INSIDE ONLY", "This page shows facts about private data. Nothing on it may leave.")
MAY_LEAVE = ("leave", "MAY LEAVE", "What is marked so follows from the release alone. The rest stays inside.")
MIXED = ("inside", "INSIDE ONLY", "Only what is marked “may leave” may leave; the rest of this page may not.")


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page for the browser that asked."""
    csrf = getattr(request.state, "csrf", "")
    text = render(template, folders=(TEMPLATES, REPORT_TEMPLATES), csrf=csrf, path=request.url.path, **values)
    return HTMLResponse(text, status)


@cache
def style_sheet() -> str:
    """The styles of the report pages, of their charts, and of this page."""
    environment = page_environment(REPORT_TEMPLATES)
    parts = [environment.get_template(name).render() for name in _STYLES]
    return "\n".join([*parts, (STATIC / "web.css").read_text(encoding="utf-8")])


@dataclass(frozen=True)
class Stop:
    """A stop of the ε slider, in plain numbers that are rounded to the side that promises less."""

    epsilon: float
    factor: str
    level: str
    right: int


def stops(delta: float = 1e-5) -> list[Stop]:
    """What each ε of the slider means for one unit, by (ε, δ) alone."""
    return [Stop(one, factor_text(one), level(one).name, guesses_right(one, delta)) for one in EPSILONS]


def stops_json() -> str:
    """The same for the script."""
    return json.dumps([[f"{one.epsilon:g}", one.factor, one.level, one.right] for one in stops()])


def guesses_right(epsilon: float, delta: float) -> int:
    """Of a hundred guesses about one unit's presence, at most so many can be right.

    The total variation distance is at most (e^ε − 1 + 2δ)/(e^ε + 1), and a guess is right with (1 + TV)/2.

    >>> guesses_right(1.0, 1e-5), guesses_right(0.1, 1e-5)
    (74, 53)
    """
    grown = math.exp(epsilon)
    return min(100, math.ceil(100 * (grown + delta) / (grown + 1)))
