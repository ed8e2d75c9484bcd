"""``sfumato plan --epsilon-table``: what an ε means, in plain numbers."""

from __future__ import annotations

import math

from sfumato.cli.console import print_json, print_table, say

EPSILONS = (0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)


def print_epsilon_table(*, as_json: bool) -> None:
    """What an ε means for someone in the data: how far it can move any probability, and an attacker's belief."""
    facts = [
        {
            "epsilon": epsilon,
            "factor": math.exp(epsilon),
            "belief_from_half": attacker_belief(0.5, epsilon),
            "belief_from_one_percent": attacker_belief(0.01, epsilon),
        }
        for epsilon in EPSILONS
    ]
    if as_json:
        return print_json(facts)
    say("Someone guesses whether a person (or an image) is in the data, and then sees everything that is released.")
    headings = ("ε", "any probability changes by a factor of at most", "a guess of 50 % becomes at most", "of 1 %")
    beliefs = ("belief_from_half", "belief_from_one_percent")
    rows = [(f"{f['epsilon']:g}", f"{f['factor']:,.1f}", *(percent(f[key]) for key in beliefs)) for f in facts]
    print_table(headings, rows)
    return say(
        "ε 1 or less is a strong guarantee, ε 3 a moderate one; at ε 10 the bound itself protects little, and known "
        "attacks reach much less than it. δ is the probability with which the bound may fail altogether."
    )


def attacker_belief(prior: float, epsilon: float) -> float:
    """The largest probability that an attacker can reach who started at ``prior`` (Bayes' rule, δ left out).

    >>> round(attacker_belief(0.5, 1.0), 3)
    0.731
    """
    return prior * math.exp(epsilon) / (prior * math.exp(epsilon) + 1 - prior)


def percent(share: float) -> str:
    """A share as per cent, rounded up, so that a bound stays a bound.

    >>> percent(0.7311), percent(0.99995)
    ('73.2 %', '99.995 %')
    """
    for digits in (1, 2, 3, 4):
        shown = math.ceil(share * 10 ** (digits + 2) - 1e-9) / 10**digits
        if shown < 100:
            return f"{shown:.{digits}f} %"
    return "almost 100 %"
