"""Calibrate random plans and count how often the cost goes over the budget.

    python benchmarks/calibration.py [--plans 1000] [--seed 0]

Each plan has a random rate, number of steps, δ and noise; its ε is computed and taken as the budget to calibrate to.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random

from sfumato.privacy import Block, Budget, SubsampledGaussian
from sfumato.privacy.accounting import calibrate, epsilon


def one(seed: int) -> tuple[float, float]:
    """Cost ÷ budget, and the calibrated noise ÷ the noise the budget was made from."""
    draw = random.Random(seed)
    while True:
        rate = math.exp(draw.uniform(math.log(1e-3), 0.0))
        steps = int(math.exp(draw.uniform(0.0, math.log(10_000))))
        noise = math.exp(draw.uniform(math.log(0.4), math.log(20.0)))
        delta = 10 ** draw.uniform(-9, -3)
        event = SubsampledGaussian("train", (Block("gradient", noise),), sampling_rate=rate, steps=steps)
        cost = epsilon([event], delta)
        if 0.01 <= cost <= 40:
            break
    (found,) = calibrate([event], Budget(cost, delta))
    return epsilon([found], delta) / cost, found.noise_multiplier / noise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with multiprocessing.Pool() as pool:
        found = pool.map(one, range(arguments.seed, arguments.seed + arguments.plans), chunksize=4)
    costs = sorted(cost for cost, _ in found)
    over = sum(cost > 1 for cost in costs)
    print(f"{len(costs)} plans: {over} over budget; cost ÷ budget from {costs[0]:.4f} to {costs[-1]:.4f}")
    print(f"noise ÷ the noise that was asked about: at most {max(noise for _, noise in found):.4f}")


if __name__ == "__main__":
    main()
