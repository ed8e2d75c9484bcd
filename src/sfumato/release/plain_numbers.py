"""ε and δ in plain numbers, always rounded to the side that promises less."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


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
