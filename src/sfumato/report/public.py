"""The public page: a release's card, its guarantee in probabilities, samples of every class; and the watermark."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from sfumato.release import Release
from sfumato.release.card import FALSE_ALARMS, Card
from sfumato.release.pages import data_address, grid, render, render_card
from sfumato.release.plain_numbers import recognised_by_definition
from sfumato.report.chart import dots

TEMPLATES = Path(__file__).parent / "templates"
WATERMARK = "NOT PRIVATE"


def not_private_page(title: str, body: str) -> str:
    """``body``, which is markup, under the watermark."""
    return render_not_private("not_private.html.jinja", title=title, content=Markup(body))


def render_not_private(template: str, *, title: str, **values: Any) -> str:
    """A page by a template that extends ``not_private.html.jinja``."""
    return render(template, folders=(TEMPLATES,), title=title, **values)


def percent_up(value: float) -> str:
    """A share in per cent, rounded up; a share below 1 is never shown as 100."""
    shown = math.ceil(1000 * value * (1 - 1e-12)) / 10
    return "100" if value >= 1 else "> 99.9" if shown >= 100 else f"{shown:.1f}"


def guesses_right(card: Card) -> int:
    """Of a hundred guesses about one unit's presence, at most so many can be right."""
    return math.ceil(100 * card.best_guess * (1 - 1e-12))


def recognised(card: Card) -> list[tuple[int, float]]:
    """For one false alarm in so many, the bound: the card's, computed from its events, or that of (ε, δ) alone."""
    if card.epsilon is None or card.delta is None:
        return []
    known = card.recognised or {}
    return [
        (often, min(known.get(str(often), 1.0), recognised_by_definition(card.epsilon, card.delta, 1 / often)))
        for often in FALSE_ALARMS
    ]


@dataclass(frozen=True)
class AttackBounds:
    """What the public page says about the best possible attacker."""

    guess: str
    dots: Markup
    recognised: list[tuple[int, str]]


def attack_bounds(card: Card) -> AttackBounds | None:
    """The bounds of a certified card; ``None`` where nothing bounds an attacker."""
    if not card.certified:
        return None
    right = guesses_right(card)
    label = f"Of 100 guesses, 50 are right by chance and at most {right} in all"
    shares = [(often, percent_up(share)) for often, share in recognised(card)]
    return AttackBounds(percent_up(card.best_guess), dots(common=50, added=right - 50, label=label), shares)


EACH = 10
CLASSES_AT_MOST = 50


def public_page(release: Release) -> str:
    """The whole page. The same release always gives the same page: the samples come from a fixed seed."""
    card = release.card
    return render_card(
        "public.html.jinja", card, folders=(TEMPLATES,), attack=attack_bounds(card), strips=_strips(release)
    )


def sample_rows(release: Release, *, each: int) -> str:
    """One picture with a row of ``each`` samples for every class, as a ``data:`` address."""
    images = _samples(release, each)
    return data_address(grid(images, columns=each, scale=max(1, 32 // images.shape[-1])))


def _strips(release: Release) -> list[tuple[str, str]]:
    images = _samples(release, EACH)
    scale = max(1, 56 // images.shape[-1])
    parts = images.reshape(-1, EACH, *images.shape[1:])
    pictures = (data_address(grid(part, columns=EACH, scale=scale)) for part in parts)
    return list(zip(release.classes, pictures, strict=False))


def _samples(release: Release, each: int) -> np.ndarray:
    labels = np.repeat(np.arange(len(release.classes[:CLASSES_AT_MOST])), each)
    return release.sample(len(labels), labels=labels, seed=1, device="cpu").images
