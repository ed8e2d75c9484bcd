"""HTML pages from templates, escaped and without scripts: the card as one page that a privacy officer can read."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from sfumato.release.card import Card
from sfumato.release.plain_numbers import factor_text, guess_by_definition, level, one_in_text, percent
from sfumato.release.registry import nist_layers
from sfumato.release.synthetic import SyntheticImages

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


def grid(images: np.ndarray, *, columns: int, scale: int = 1, gap: int = 2) -> Image.Image:
    """``uint8 [N, C, H, W]`` row by row, on white."""
    count, channels, height, width = images.shape
    rows = -(-count // columns)
    canvas = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, channels), 255, dtype=np.uint8)
    for index, image in enumerate(images):
        top, left = gap + index // columns * (height + gap), gap + index % columns * (width + gap)
        canvas[top : top + height, left : left + width] = np.moveaxis(image, 0, -1)
    picture = Image.fromarray(canvas[..., 0] if channels == 1 else canvas)
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)


def data_address(picture: Image.Image) -> str:
    """The picture as a ``data:`` address, so that a page needs no second file."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def card_page(drawn: SyntheticImages, *, columns: int) -> str:
    """The page of a release, around samples drawn from it: a row of ``columns`` for each of the first classes."""
    picture = data_address(grid(drawn.images, columns=columns, scale=max(1, 56 // drawn.images.shape[-1])))
    return render_card("card.html.jinja", drawn.card, picture=picture)


def render_card(template: str, card: Card, *, folders: Sequence[Path] = (), **values: Any) -> str:
    """A page by a template that extends ``card.html.jinja``."""
    plain: dict[str, Any] = {}
    if card.epsilon is not None and card.delta is not None:
        plain = {"level": level(card.epsilon), "factor": factor_text(card.epsilon), "one_in": one_in_text(card.delta)}
        plain["any_method"] = percent(guess_by_definition(card.epsilon, card.delta))
    plain |= {"layers": nist_layers(card), "sentence": _sentence(card), "made": _made(card)}
    return render(template, folders=folders, card=card, **plain, **values)


def _sentence(card: Card) -> Markup:
    """With δ in one piece: a line must not break after the hyphen of 1e-05."""
    text = escape(card.sentence)
    if card.delta is None:
        return text
    delta = f"{card.delta:g}"
    return text.replace(delta, Markup('<span class="whole">{}</span>').format(delta))


def _made(card: Card) -> list[tuple[str, str]]:
    parameters = ", ".join(f"{key} = {value}" for key, value in card.parameters.items())
    return [
        ("method", f"{card.method}, variant {card.variant}: {card.paper}"),
        ("parameters", parameters),
        ("relation", f"{card.relation} ({card.unit})"),
        ("batches", card.sampler),
        ("accountant", card.accountant),
        ("randomness", card.randomness),
        ("ledger", f"entry {card.ledger_head.length}, {card.ledger_head.hash}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in card.versions.items())),
        ("made", f"{card.made} on {card.device}"),
        ("command", card.command or "from Python"),
    ]
