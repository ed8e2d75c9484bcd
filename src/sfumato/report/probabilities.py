"""What an (ε, δ) allows an attacker, as probabilities for the public page; always rounded to the unfavourable side."""

from __future__ import annotations

import math
from dataclasses import dataclass

from markupsafe import Markup

from sfumato.release.attack_bounds import recognised_by_definition
from sfumato.release.card import FALSE_ALARMS, Card
from sfumato.report.chart import dots


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
