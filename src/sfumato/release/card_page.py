"""The card as one page that a privacy officer can read: no script, no network, everything inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from sfumato.release.card import Card
from sfumato.release.image_grid import data_address, grid
from sfumato.release.pages import render
from sfumato.release.plain_numbers import factor_text, level, one_in_text
from sfumato.release.synthetic import SyntheticImages


def card_page(drawn: SyntheticImages, *, columns: int) -> str:
    """The page of a release, around samples drawn from it: a row of ``columns`` for each of the first classes."""
    picture = data_address(grid(drawn.images, columns=columns, scale=max(1, 56 // drawn.images.shape[-1])))
    return render_card("card.html.jinja", drawn.card, picture=picture)


def render_card(template: str, card: Card, *, folders: Sequence[Path] = (), **values: Any) -> str:
    """A page by a template that extends ``card.html.jinja``."""
    plain = {}
    if card.epsilon is not None and card.delta is not None:
        plain = {"level": level(card.epsilon), "factor": factor_text(card.epsilon), "one_in": one_in_text(card.delta)}
    return render(template, folders=folders, card=card, sentence=_sentence(card), made=_made(card), **plain, **values)


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
