"""Tests of the noise (scale, normality, independence, grid) and of the coins (rate, independence).

Each test has a false alarm rate of α = 1e-6. A test that cannot fail shows nothing, so the smallest error of scale
and rate that these samples would have exposed is computed and tried (the reverse test).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from sfumato.audit.canary import instrumented
from sfumato.evaluation.classifiers import Progress, silent
from sfumato.methods.base import Method
from sfumato.privacy import AnyBudget, Curator, Ledger, PrivateRecords, Randomness
from sfumato.privacy.mechanism import Query, grid_of

ALPHA = 1e-6
COIN_STEPS = 200


@dataclass
class Seen:
    """Observations of one run: the standardised noise of each answer, the numbers off the grid, the coins."""

    noise: dict[tuple[str, int, str], np.ndarray] = field(default_factory=dict)
    numbers: int = 0
    off_grid: int = 0
    coins: dict[str, tuple[float, np.ndarray]] = field(default_factory=dict)


class _Watching(Curator):
    seen: Seen

    def _release(self, question: Query) -> Tensor:
        answer = super()._release(question)
        pieces, sizes = [], [part.total.numel() for part in question.sums]
        for part, piece in zip(question.sums, torch.split(answer, sizes), strict=True):
            pieces.append((piece.double() - part.total.flatten().double()) / part.standard_deviation)
            steps = piece.double() / grid_of(part.standard_deviation)
            self.seen.off_grid += int((steps != steps.round()).sum())
            self.seen.numbers += len(piece)
        self.seen.noise[(question.event, question.step, question.block)] = torch.cat(pieces).cpu().numpy()
        return answer

    def close(self) -> None:
        """Before the data is dropped, draw the coins of further steps."""
        for event in self.plan.events:
            if event.sampling_rate < 1:
                everyone = np.arange(event.shards or 0)
                if event.shards is None:
                    everyone = self._units.sample(self._randomness, 1.0, "everyone")
                steps = (self.step_type(self, event, event.steps + index) for index in range(COIN_STEPS))
                table = np.stack([np.isin(everyone, step._batch) for step in steps])
                self.seen.coins[event.name] = (event.sampling_rate, table)
        super().close()


def watch(method: Method, private: PrivateRecords, budget: AnyBudget) -> Seen:
    """One unseeded run with the global seeds of torch and numpy set, which must not make the noise repeatable."""
    seen = Seen()
    torch.manual_seed(0)
    np.random.seed(0)
    with Ledger(None, budget) as ledger:
        instrumented(method, curator=_Watching, seen=seen).fit(private, budget, ledger, device="cpu")
    return seen


@dataclass(frozen=True)
class Test:
    """One hypothesis test: its p-value, its sample size, and the error that it would have exposed."""

    name: str
    chance: float
    size: int
    exposes: str

    @property
    def failed(self) -> bool:
        return not self.chance >= ALPHA


@dataclass(frozen=True)
class NoiseAudit:
    """The tests of a noise source and which of them failed."""

    tests: tuple[Test, ...]

    @property
    def flagged(self) -> bool:
        return any(test.failed for test in self.tests)

    def to_json(self) -> dict[str, Any]:
        return {
            "alpha": ALPHA,
            "flagged": self.flagged,
            "tests": [{**vars(test), "failed": test.failed} for test in self.tests],
        }


def audit_noise(
    method: Method, private: PrivateRecords, *, budget: AnyBudget, runs: int = 3, progress: Progress = silent
) -> NoiseAudit:
    """Run the method ``runs`` times, and once without one unit, and apply every test."""
    runs, worlds = max(2, runs), []
    for number in range(runs):
        progress("runs of the method", number, runs + 1)
        worlds.append(watch(method, private, budget))
    progress("runs of the method", runs, runs + 1)
    neighbour = watch(method, private._without(0, budget.unit), budget)
    values = np.concatenate([np.zeros(0), *(piece for seen in worlds for piece in seen.noise.values())])
    tests = [scale_test(values), law_test(values)]
    first, second = worlds[0].noise, worlds[1].noise
    shared = [key for key in first if key in second and first[key].shape == second[key].shape]
    tests.append(_correlation("two runs under one manual_seed", [(first[key], second[key]) for key in shared]))
    tests.append(_correlation("consecutive steps", _consecutive(first)))
    classes = len(private.classes)
    tests += [
        _correlation(f"{what} of one answer", _lagged(first, lag))
        for what, lag in (("neighbours", None), ("halves", 2), ("classes", classes))
        if lag is None or lag > 1
    ]
    tests.append(_grid_test(worlds[0], neighbour))
    for name, (rate, table) in worlds[0].coins.items():
        tests += coin_tests(table, rate, name)
    return NoiseAudit(tuple(test for test in tests if test.size))


def audit_generator(*, numbers: int = 400_000, units: int = 2000, rate: float = 0.1) -> NoiseAudit:
    """The same tests of the generator alone, with more numbers than a small run has."""
    randomness = Randomness()
    classes = [randomness.gaussian(numbers // 4, torch.device("cpu"), "audit", label).numpy() for label in range(4)]
    values = np.concatenate(classes)
    draws = [randomness.draws(torch.arange(units), torch.zeros(units, dtype=torch.int64), "audit", t) for t in (0, 1)]
    latents = [one.normal("latent", 16).double().numpy() for one in draws]
    everyone = np.arange(units)
    table = np.stack([np.isin(everyone, randomness.coins(units, rate, "audit", step).numpy()) for step in range(200)])
    tests = [
        scale_test(values),
        law_test(values),
        _correlation("streams of different labels", list(itertools.pairwise(classes))),
        _correlation("neighbours in a stream", [(values[:-1], values[1:])]),
        _correlation("draws of neighbouring units", [(one[:-1].ravel(), one[1:].ravel()) for one in latents]),
        _correlation("draws of one unit in two steps", [(latents[0].ravel(), latents[1].ravel())]),
        *coin_tests(table, rate, "the generator"),
    ]
    return NoiseAudit(tuple(tests))


# Noise


def scale_test(values: np.ndarray) -> Test:
    """Σ z² is χ²: too small noise leaks, too large noise is not what the card says either."""
    size = len(values)
    # Far enough out that the reverse test fails to reject less than once in a million.
    factor = 1 + 10.0 / math.sqrt(2 * max(1, size))
    reverse = _scale_chance(factor * values)
    exposes = f"a scale wrong by {100 * (factor - 1):.2g} %" + ("" if reverse < ALPHA else " (NOT rejected)")
    return Test("scale of the noise", _scale_chance(values), size, exposes)


def _scale_chance(values: np.ndarray) -> float:
    total = float(np.square(values).sum())
    return float(2 * min(stats.chi2.cdf(total, len(values)), stats.chi2.sf(total, len(values)))) if len(values) else 1.0


def law_test(values: np.ndarray) -> Test:
    """Kolmogorov and Smirnov against the standard normal."""
    chance = float(stats.kstest(values, "norm").pvalue) if len(values) else 1.0
    return Test("normality of the noise", chance, len(values), "a law more than a few 1/√n away")


def _correlation(name: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Test:
    total = sum(float(a @ b) for a, b in pairs)
    size = sum(len(a) for a, _ in pairs)
    # Products of independent standard normals have mean 0 and variance 1.
    chance = float(2 * stats.norm.sf(abs(total) / math.sqrt(size))) if size else 1.0
    return Test(f"independence: {name}", chance, size, f"a correlation of {6 / math.sqrt(max(1, size)):.2g}")


def _consecutive(noise: dict[tuple[str, int, str], np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    following = ((piece, noise.get((event, step + 1, block))) for (event, step, block), piece in noise.items())
    return [(a, b) for a, b in following if b is not None and b.shape == a.shape]


def _lagged(noise: dict[tuple[str, int, str], np.ndarray], parts: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Each answer against itself, moved by one place or by one of ``parts`` equal slices."""
    pairs = []
    for piece in noise.values():
        lag = 1 if parts is None else len(piece) // parts
        if 0 < lag < len(piece):
            pairs.append((piece[:-lag], piece[lag:]))
    return pairs


def _grid_test(one: Seen, other: Seen) -> Test:
    """Every answer lies on the grid that depends on the noise alone, in both worlds alike."""
    chance = 1.0 if one.off_grid == other.off_grid == 0 else 0.0
    return Test("answers on the grid, in both worlds", chance, one.numbers + other.numbers, "a single number off it")


# Coins


def coin_tests(table: np.ndarray, rate: float, name: str) -> list[Test]:
    """``table[step, unit]`` is the coin of a unit. Tests of rate, variance over steps and units, independence."""
    steps, units = table.shape
    size, variance = steps * units, rate * (1 - rate)
    if not size:
        return []
    hits = int(table.sum())
    centred = table - rate
    error = 6.5 * math.sqrt(variance / size)
    wrong = float(stats.binomtest(hits, size, min(1 - 1e-9, rate + 2 * error)).pvalue)
    exposes = f"a rate wrong by {2 * error:.2g}" + ("" if wrong < ALPHA else " (NOT rejected)")
    return [
        Test(f"coins of {name}: rate", float(stats.binomtest(hits, size, rate).pvalue), size, exposes),
        _variance_test(f"coins of {name}: batch sizes", table.sum(1), units, rate),
        _variance_test(f"coins of {name}: draws of a unit", table.sum(0), steps, rate),
        _product_test(f"coins of {name}: consecutive steps", centred[:-1] * centred[1:] / variance),
        _product_test(f"coins of {name}: neighbouring units", centred[:, :-1] * centred[:, 1:] / variance),
    ]


def _variance_test(name: str, counts: np.ndarray, trials: int, rate: float) -> Test:
    """The variance of binomial counts: batches of one fixed size come from shuffling, not from coins."""
    variance = trials * rate * (1 - rate)
    squares = np.square(counts - trials * rate) / variance
    # (X − np)²/npq has mean 1 and variance 2 + (1 − 6pq)/npq.
    width = math.sqrt((2 + (1 - 6 * rate * (1 - rate)) / variance) / len(counts))
    low = float(stats.chi2.cdf(squares.sum(), len(counts)))
    high = float(stats.norm.sf((squares.mean() - 1) / width / 1.5))
    return Test(name, min(1.0, 2 * min(low, high)), len(counts), "batches of one fixed size")


def _product_test(name: str, products: np.ndarray) -> Test:
    size = products.size
    chance = float(2 * stats.norm.sf(abs(products.sum()) / math.sqrt(size))) if size else 1.0
    return Test(name, chance, size, f"a correlation of {6 / math.sqrt(max(1, size)):.2g}")
