"""Lower bounds on ε from the results of an attack, each with its confidence and its assumptions.

All of them refute: with the stated confidence the mechanism is NOT (ε, δ)-DP for any ε below the bound. None of them
can confirm; an attack that finds nothing may have been a poor attack.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

LARGEST = 60.0
"""No bound is looked for above this ε: e^60 is certainty enough."""


@dataclass(frozen=True)
class Bound:
    """``epsilon`` at ``delta`` is refuted from below with this ``confidence``; ``assumes`` is what must be true."""

    epsilon: float
    delta: float
    confidence: float
    method: str
    assumes: str
    threat: str = "sees what the attack's score is computed from"

    def __str__(self) -> str:
        return f"measured ≥ {self.epsilon:.2f} ({100 * self.confidence:g} %) by {self.method}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def upper_rate(hits: int, trials: int, alpha: float) -> float:
    """Clopper and Pearson: the true rate lies above this with probability at most ``alpha``."""
    return 1.0 if hits >= trials else float(stats.beta.ppf(1 - alpha, hits + 1, trials - hits))


def lower_rate(hits: int, trials: int, alpha: float) -> float:
    """Clopper and Pearson: the true rate lies below this with probability at most ``alpha``."""
    return 0.0 if hits <= 0 else float(stats.beta.ppf(alpha, hits, trials - hits + 1))


# Two worlds: many runs without and with the canary


def two_worlds(
    without: np.ndarray, within: np.ndarray, *, delta: float, confidence: float = 0.95, threat: str = Bound.threat
) -> tuple[Bound, Bound]:
    """Clopper-Pearson and Gaussian-DP bounds from an attack's scores in runs without and with the canary.

    The threshold and the direction are chosen on the first half of the runs and evaluated on the second, so that the
    choice costs no confidence. The Clopper-Pearson bound cannot pass log(runs), however strong the attack.
    """
    halves = [(np.asarray(s[: len(s) // 2], float), np.asarray(s[len(s) // 2 :], float)) for s in (without, within)]
    (out_first, out_second), (in_first, in_second) = halves
    alpha = (1 - confidence) / 2
    both = np.concatenate([out_first, in_first])
    cuts = np.concatenate([np.quantile(sign * both, np.linspace(0.005, 0.995, 199)) for sign in (1.0, -1.0)])
    signs = np.repeat([1.0, -1.0], 199)
    # An approximate upper rate suffices on the first half; the second half gives the bound.
    false, missed = (
        np.minimum(1.0, (hits + 3 + 2 * np.sqrt(hits * (1 - hits / trials))) / trials)
        for hits, trials in (
            (_above(out_first, signs, cuts), len(out_first)),
            (len(in_first) - _above(in_first, signs, cuts), len(in_first)),
        )
    )
    promise = {
        "Clopper-Pearson": np.maximum((1 - missed) / false, (1 - false) / missed),
        "Gaussian DP": -stats.norm.ppf(np.minimum(false, 1 - 1e-9)) - stats.norm.ppf(np.minimum(missed, 1 - 1e-9)),
    }
    bounds = []
    for value, name, assumes in (
        (_approximate, "Clopper-Pearson", "nothing but independent runs"),
        (_gaussian, "Gaussian DP", "a trade-off curve no better for the attacker than a Gaussian mechanism's"),
    ):
        choice = int(np.argmax(promise[name]))
        above = [
            int(_above(s, signs[choice : choice + 1], cuts[choice : choice + 1])[0]) for s in (out_second, in_second)
        ]
        worst_false = upper_rate(above[0], len(out_second), alpha)
        worst_missed = upper_rate(len(in_second) - above[1], len(in_second), alpha)
        bounds.append(Bound(value(worst_false, worst_missed, delta), delta, confidence, name, assumes, threat))
    return bounds[0], bounds[1]


def _above(scores: np.ndarray, signs: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    hits: np.ndarray = (signs[:, None] * scores[None, :] > cuts[:, None]).sum(1)
    return hits


def _approximate(false: float, missed: float, delta: float) -> float:
    """(ε, δ)-DP means 1 − missed ≤ e^ε · false + δ, and the same with the worlds exchanged."""
    pairs = ((1 - delta - missed, false), (1 - delta - false, missed))
    return max(0.0, *(math.log(hit / miss) for hit, miss in pairs if hit > 0 and miss > 0), 0.0)


def _gaussian(false: float, missed: float, delta: float) -> float:
    return gaussian_epsilon(float(stats.norm.ppf(1 - false) - stats.norm.ppf(missed)), delta)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a Gaussian mechanism whose two worlds lie ``mu`` standard deviations apart."""
    near = stats.norm.cdf(mu / 2 - epsilon / mu)
    return float(near - math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε(δ) of the same."""
    if not mu > 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    if gaussian_delta(mu, LARGEST) > delta:
        return LARGEST
    return float(optimize.brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, LARGEST))


# One run, many canaries


def one_run(
    scores: np.ndarray, included: np.ndarray, *, delta: float, confidence: float = 0.95, threat: str = Bound.threat
) -> Bound:
    """The bound of Steinke, Nasr and Jagielski (2023): m canaries, each in or out by its own fair coin.

    The attack guesses "in" for the highest scores and "out" for the lowest and abstains between. The best number
    of guesses is not known beforehand; each of a few fixed numbers gets its share of the error probability.
    """
    scores, included = np.asarray(scores, float), np.asarray(included, bool)
    canaries = len(scores)
    order = np.argsort(scores, kind="stable")
    counts = sorted({2 * max(1, int(canaries * share / 2)) for share in (1.0, 0.5, 0.25, 0.1, 0.04)})
    alpha = (1 - confidence) / len(counts)
    best = 0.0
    for guesses in counts:
        half = guesses // 2
        right = int(included[order[-half:]].sum() + (~included[order[:half]]).sum())
        if chance_of_guesses(canaries, guesses, right, best, delta) <= alpha:
            best = _refuted(canaries, guesses, right, delta, alpha)
    return Bound(best, delta, confidence, "one run", "coins of the canaries are fair and independent", threat)


def chance_of_guesses(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """At most so probable are ``right`` of ``guesses`` correct, if the mechanism is (ε, δ)-DP (their theorem 5.2)."""
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, rate))
    if delta == 0 or right < 1:
        return tail
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, rate))
    return min(1.0, tail + 2 * canaries * delta * float((below / np.arange(1, right + 1)).max()))


def _refuted(canaries: int, guesses: int, right: int, delta: float, alpha: float) -> float:
    def excess(epsilon: float) -> float:
        return chance_of_guesses(canaries, guesses, right, epsilon, delta) - alpha

    if excess(0.0) > 0:
        return 0.0
    if excess(LARGEST) <= 0:
        return LARGEST
    return float(optimize.brentq(excess, 0.0, LARGEST))


# The mechanism is known: its likelihood ratio can be drawn


def likelihood_ratio(
    losses: np.ndarray, *, delta: float, confidence: float = 0.95, threat: str = Bound.threat
) -> Bound:
    """From draws of the privacy loss L = log dP/dQ under P: δ ≥ P(L > ε + t)·(1 − e^−t) for every t > 0.

    P(L > s) is bounded below from order statistics, so neither the law of L nor its tail is assumed, and the bound is
    not limited by log(runs): one draw says how large a loss is, not only on which side it fell. t is chosen on the
    first half of the draws.
    """
    losses = np.asarray(losses, float)
    first, second = losses[: len(losses) // 2], losses[len(losses) // 2 :]
    choices = np.geomspace(0.05, 3.0, 25)
    best = max(choices, key=lambda t: _largest_loss(first, float(t), delta, 1 - confidence))
    epsilon = max(0.0, _largest_loss(second, float(best), delta, 1 - confidence))
    assumes = "the two worlds are drawn as the mechanism is written down"
    return Bound(epsilon, delta, confidence, "likelihood ratio", assumes, threat)


def _largest_loss(losses: np.ndarray, t: float, delta: float, alpha: float) -> float:
    """The largest s − t with P(L > s)(1 − e^−t) > δ, in all but ``alpha`` of the cases."""
    needed = delta / (1 - math.exp(-t))
    if needed >= 1:
        return -math.inf
    draws = len(losses)
    # The smallest k for which k or more of the draws lie above the true quantile with probability at most alpha.
    k = int(stats.binom.ppf(1 - alpha, draws, needed)) + 1
    if k > draws:
        return -math.inf
    return float(np.partition(losses, draws - k)[draws - k]) - t
