"""What an (ε, δ) allows an attacker, as odds that a person can picture. Always rounded against us."""

from __future__ import annotations

import math
from html import escape

from sfumato.release.card import FALSE_ALARMS, Card
from sfumato.report.chart import dots, figure


def percent_up(value: float) -> str:
    """A share in per cent, never smaller than it is; a share below 1 is never shown as 100."""
    shown = math.ceil(1000 * value * (1 - 1e-12)) / 10
    return "100" if value >= 1 else "> 99.9" if shown >= 100 else f"{shown:.1f}"


def most_recognised(epsilon: float, delta: float, false_alarms: float) -> float:
    """The largest share of those who were in the collection that any test can point out at this rate of false alarms.

    The definition of (ε, δ), read both ways: TPR ≤ e^ε · FPR + δ and 1 − FPR ≤ e^ε · (1 − TPR) + δ.
    """
    upper = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    other = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms)
    return min(1.0, upper, other)


def recognised(card: Card) -> list[tuple[int, float]]:
    """For one false alarm in so many, the bound: the card's, computed from the mechanism, or what (ε, δ) alone says."""
    known = card.recognised or {}
    if card.epsilon is None or card.delta is None:
        return []
    return [
        (often, min(known.get(str(often), 1.0), most_recognised(card.epsilon, card.delta, 1 / often)))
        for often in FALSE_ALARMS
    ]


def guesses_right(card: Card) -> int:
    """Of a hundred guesses about one unit's presence, at most so many can be right."""
    return math.ceil(100 * card.best_guess * (1 - 1e-12))


def meaning(card: Card) -> str:
    """The guarantee as a picture of a hundred guesses and a table of what a suspicious reader could find out."""
    unit = escape(card.unit)
    if card.guarantee != "certified":
        return "<h2>What that means</h2><p>Nothing bounds what a reader of this release can find out about anyone.</p>"
    guess, right = card.best_guess, guesses_right(card)
    picture = figure(
        f"How often can a guess about one {unit} be right?",
        dots(common=50, added=right - 50, label=f"Of 100 guesses, 50 are right by chance and at most {right} in all"),
        f"Was this {unit} in the collection? Of 100 such guesses a tossed coin gets 50 right (dark). Reading the "
        f"release, and knowing everything else there is to know, can make it at most {percent_up(guess)} % (with the "
        "red ones).",
    )
    rows = "".join(f"<tr><td>1 in {often}</td><td>{percent_up(share)} %</td></tr>" for often, share in recognised(card))
    return (
        f"<h2>What that means</h2>{picture}"
        f"<p>Someone suspects particular {unit}s of having been in the collection, and looks for proof in the release. "
        "However it is done, the more often innocents may be suspected, the more can be found:</p>"
        f'<table class="odds"><tr><th>wrongly suspected, of those who were not in it</th>'
        f"<th>rightly suspected, of those who were, at most</th></tr>{rows}</table>"
    )
