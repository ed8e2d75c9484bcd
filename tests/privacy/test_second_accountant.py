"""ε of seven ledgers, computed again by an implementation that shares nothing with the accountant's.

The privacy loss of one step is discretised on a grid, each mass divided between two neighbouring points so that its
mean stays, and composed by a fast Fourier transform.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from sfumato.privacy import Block, Budget, Ledger, SubsampledGaussian

POINTS, RANGE = 1 << 17, 80.0
CELL = 2 * RANGE / POINTS


def loss_spectrum(noise: float, rate: float, kind: str) -> np.ndarray:
    """The transform of one step's loss distribution: a unit removed, added, or (in a shard) replaced."""
    edges = np.linspace(-12 * noise - 2, 12 * noise + 2, 200_001)
    middles = (edges[1:] + edges[:-1]) / 2

    def masses(mean: float) -> np.ndarray:
        return np.diff(stats.norm.cdf(edges, mean, noise))

    def log_ratio(mean: float) -> np.ndarray:
        whole = (2 * mean * middles - mean**2) / (2 * noise**2)
        return whole if rate == 1 else np.logaddexp(np.log1p(-rate), np.log(rate) + whole)

    above, below = {"removed": (1.0, None), "added": (None, 1.0), "replaced": (1.0, -1.0)}[kind]
    loss = (0.0 if above is None else log_ratio(above)) - (0.0 if below is None else log_ratio(below))
    mass = masses(0.0) if above is None else (1 - rate) * masses(0.0) + rate * masses(above)
    place = np.clip(loss / CELL, -POINTS // 2, POINTS // 2 - 2)
    lower = np.floor(place).astype(np.int64)
    share = place - lower
    grid = np.bincount((lower % POINTS), mass * (1 - share), POINTS)
    grid += np.bincount(((lower + 1) % POINTS), mass * share, POINTS)
    return np.fft.rfft(grid)


def second_epsilon(events: list[SubsampledGaussian], delta: float) -> float:
    sharded = any(event.shards is not None for event in events)
    found = []
    for kind in ("replaced",) if sharded else ("removed", "added"):
        spectrum = np.ones(POINTS // 2 + 1, dtype=complex)
        for event in events:
            noise = sum(block.noise_multiplier**-2 for block in event.blocks) ** -0.5
            spectrum *= loss_spectrum(noise, event.sampling_rate, kind) ** event.steps
        mass = np.clip(np.fft.irfft(spectrum, POINTS), 0.0, None)
        losses = np.fft.fftfreq(POINTS, 1 / POINTS) * CELL

        def excess(epsilon: float, mass: np.ndarray = mass, losses: np.ndarray = losses) -> float:
            over = losses > epsilon
            return float((mass[over] * -np.expm1(epsilon - losses[over])).sum()) - delta

        found.append(0.0 if excess(0.0) <= 0 else float(optimize.brentq(excess, 0.0, RANGE / 2)))
    return max(found)


def event(noise: float, rate: float = 1.0, steps: int = 1, shards: int | None = None) -> SubsampledGaussian:
    name = f"{noise} {rate} {shards}"
    return SubsampledGaussian(name, (Block("sum", noise),), sampling_rate=rate, steps=steps, shards=shards)


TWO_BLOCKS = SubsampledGaussian("step", (Block("a", 3.0), Block("b", 4.0)), sampling_rate=0.05, steps=200)
LEDGERS = [
    ([event(2.0)], 1e-5),
    ([event(0.8, 0.01, 500)], 1e-5),
    ([event(0.6, 0.004, 1500)], 1e-5),
    ([event(50.0), event(3.0, 0.1, 300)], 1e-5),
    ([event(20.0), TWO_BLOCKS], 1e-7),
    ([event(3.0, 0.1, 100, shards=50)], 1e-5),
    ([event(40.0), event(5.0, 0.2, 60, shards=20)], 1e-5),
]


@pytest.mark.parametrize(("events", "delta"), LEDGERS)
def test_a_second_implementation_finds_the_same_epsilon(events: list[SubsampledGaussian], delta: float) -> None:
    with Ledger(None, Budget(100.0, delta)) as ledger:
        run = ledger.start_run(method="m", variant="v", seeded=False)
        ledger.reserve(run, events)
        for one in events:
            ledger.charge(run, one)
        spent = ledger.spent()
    again = second_epsilon(events, delta)
    assert spent == pytest.approx(again, rel=5e-3)
    assert spent >= again * (1 - 1e-3), "the ledger must not say less"
