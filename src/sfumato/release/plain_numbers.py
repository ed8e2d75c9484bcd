"""ε and δ in plain numbers, rounded to the side that promises less; bounds on attackers; results as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sfumato.privacy.accounting import trade_off
from sfumato.privacy.events import Event


def plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, tuples as lists, anything else as it is.

    An object with a ``to_json`` method decides for itself.
    """
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return entries(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def entries(value: Any) -> dict[str, Any]:
    """The fields of a dataclass in their order, as plain data."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


def factor_text(epsilon: float) -> str:
    """e^ε to three digits, rounded up: how many times more likely any result can become."""
    if epsilon > 50:
        return "more than 10²¹"
    return _with_commas(_rounded(math.exp(epsilon), math.ceil))


def one_in_text(delta: float) -> str:
    """δ as "1 in N", with N rounded down to three digits; "never" where δ is 0."""
    return "never" if delta == 0 else f"1 in {_with_commas(_rounded(1 / delta, math.floor))}"


def _rounded(value: float, towards: Callable[[float], int]) -> float:
    unit = 10.0 ** (math.floor(math.log10(value) + 1e-12) - 2)
    # 1 / 1e-05 is 99999.99…: a value that is round but for its last bits stays.
    near = round(value / unit)
    steps = near if abs(value / unit - near) < 1e-9 * near else towards(value / unit)
    return steps * unit


def _with_commas(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Level:
    """How strong a guarantee is, and the range of ε that it covers."""

    name: str
    range: str


def level(epsilon: float) -> Level:
    """The tier of an ε after Ponomareva et al., "How to DP-fy ML" (2023), section 5.2."""
    if epsilon <= 1:
        return Level("strong", "ε up to 1")
    if epsilon <= 10:
        return Level("reasonable", "ε from 1 to 10")
    return Level("weak", "ε above 10")


LEVELS = (
    'Strong, reasonable and weak are the tiers of Ponomareva et al., "How to DP-fy ML". From about ε 3 on the bound '
    "alone leaves an attacker with nearly everything, and calling it reasonable rests on known attacks, which reach "
    "much less."
)
"""What the names of the levels mean, for wherever they are listed."""


def percent(share: float) -> str:
    """A bound in per cent, rounded up; a share below 1 is never shown as 100 %.

    >>> percent(0.7311), percent(0.99995), percent(1.0)
    ('73.2 %', '> 99.9 %', '100 %')
    """
    shown = math.ceil(1000 * share * (1 - 1e-12)) / 10
    return "100 %" if share >= 1 else "> 99.9 %" if shown >= 100 else f"{shown:.1f} %"


def of_hundred(share: float) -> int:
    """A bound as a number of a hundred guesses, rounded up."""
    return min(100, math.ceil(100 * share * (1 - 1e-12)))


def guesses_text(epsilon: float, delta: float, unit: str, guess: float | None = None) -> str:
    """What an ε means for a guess about one unit: by ε and δ alone, and by the noise of one method where it is known.

    >>> guesses_text(1.0, 1e-5, "person", 0.553)
    'Whether a given person was in the collection can be guessed rightly half the time by chance; at ε 1 at most \
73.2 % of the time, whatever the method; with the noise of this one at most 55.3 %'
    """
    text = (
        f"Whether a given {unit} was in the collection can be guessed rightly half the time by chance; at ε "
        f"{epsilon:g} at most {percent(guess_by_definition(epsilon, delta))} of the time, whatever the method"
    )
    return text if guess is None else f"{text}; with the noise of this one at most {percent(guess)}"


def best_guess(events: Iterable[Event]) -> float:
    """Largest probability that an attacker is right about one unit's presence, when it is present half the time.

    (1 + TV)/2, where the total variation distance TV is the δ at ε = 0.
    """
    return min(1.0, (1.0 + trade_off(events)[0][1]) / 2.0)


def guess_by_definition(epsilon: float, delta: float) -> float:
    """The same probability by (ε, δ) alone: TV ≤ (e^ε − 1 + 2δ) / (e^ε + 1)."""
    factor = math.exp(-epsilon)
    return min(1.0, (1.0 + (1.0 - factor + 2.0 * delta * factor) / (1.0 + factor)) / 2.0)


def most_recognised(events: Iterable[Event], false_alarms: float) -> float:
    """Largest share of the units present that any test can recognise at this rate of false alarms.

    TPR ≤ e^ε · FPR + δ(ε) and, with the errors exchanged, 1 − FPR ≤ e^ε · (1 − TPR) + δ(ε), for every ε at once.
    """
    found = [1.0]
    for level, delta in trade_off(events):
        found += [math.exp(level) * false_alarms + delta, 1 - math.exp(-level) * (1 - delta - false_alarms)]
    return min(found)


def recognised_by_definition(epsilon: float, delta: float, false_alarms: float) -> float:
    """The same share by (ε, δ) alone: TPR ≤ e^ε · FPR + δ and 1 − FPR ≤ e^ε · (1 − TPR) + δ."""
    upper = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    other = 1.0 - math.exp(-epsilon) * (1.0 - delta - false_alarms)
    return min(1.0, upper, other)
